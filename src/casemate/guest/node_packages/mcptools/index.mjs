// A module's exports must be named before it runs. Those that a program imports by name are added in ../../node_tools.cjs.
import tools from './index.cjs';

export const { ToolError, contentOf, search } = tools;
export { tools as 'module.exports', tools as default };
