"""What the official conformance suite expects of a server under test: tools, resources and prompts with fixed names.

They are added to casemate's own server, so that what answers, seals and checks is casemate's. The names, texts and
schemas are the suite's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged

Json = dict[str, Any]
Made = types.CallToolResult | types.InputRequiredResult
Fixture = Callable[[Any, types.CallToolRequestParams], Awaitable[Made]]

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
_TEXT = {"type": "string"}
_BUS = InMemorySubscriptionBus()
_TOOLS: dict[str, tuple[types.Tool, Fixture]] = {}


def _tool(properties: Json | None = None, schema: Json | None = None) -> Callable[[Fixture], Fixture]:
    """A tool that is called as its function."""

    def add(function: Fixture) -> Fixture:
        name = function.__name__
        shape = schema or {"type": "object", "properties": properties or {}}
        _TOOLS[name] = types.Tool(name=name, description=f"Fixture: {name}", input_schema=shape), function
        return function

    return add


def _said(text: str) -> types.CallToolResult:
    return _gives(types.TextContent(type="text", text=text))


def _gives(*content: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def _embedded(uri: str, media_type: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    )


_IMAGE = types.ImageContent(type="image", data=_PNG, mime_type="image/png")


@_tool()
async def test_simple_text(context: Any, params: Any) -> Made:
    return _said("This is a simple text response for testing.")


@_tool()
async def test_image_content(context: Any, params: Any) -> Made:
    return _gives(_IMAGE)


@_tool()
async def test_audio_content(context: Any, params: Any) -> Made:
    return _gives(types.AudioContent(type="audio", data=_WAV, mime_type="audio/wav"))


@_tool()
async def test_embedded_resource(context: Any, params: Any) -> Made:
    return _gives(_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@_tool()
async def test_multiple_content_types(context: Any, params: Any) -> Made:
    return _gives(
        types.TextContent(type="text", text="Multiple content types test:"),
        _IMAGE,
        _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    )


async def _log(context: Any, text: str) -> None:
    await context.session.send_log_message("info", text, related_request_id=context.request_id)


@_tool()
async def test_tool_with_logging(context: Any, params: Any) -> Made:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _log(context, text)
        await anyio.sleep(0.02)
    return _said("done")


@_tool()
async def test_logging_tool(context: Any, params: Any) -> Made:
    await _log(context, "only for who has asked for it")
    return _said("logged")


@_tool()
async def test_tool_with_progress(context: Any, params: Any) -> Made:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(0.02)
    return _said("done")


@_tool({"prompt": _TEXT})
async def test_sampling(context: Any, params: Any) -> Made:
    message = types.SamplingMessage(
        role="user", content=types.TextContent(type="text", text=params.arguments["prompt"])
    )
    made = await context.session.create_message([message], max_tokens=100, related_request_id=context.request_id)
    return _said(f"LLM response: {made.content.text}")


async def _form(context: Any, message: str, properties: Json) -> Made:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    answer = await context.session.elicit_form(message, schema, related_request_id=context.request_id)
    return _said(f"action={answer.action}, content={json.dumps(answer.content or {})}")


@_tool({"message": _TEXT})
async def test_elicitation(context: Any, params: Any) -> Made:
    return await _form(context, params.arguments["message"], {"response": {**_TEXT, "description": "User's response"}})


@_tool()
async def test_elicitation_sep1034_defaults(context: Any, params: Any) -> Made:
    properties = {
        "name": {**_TEXT, "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {**_TEXT, "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _form(context, "Please provide user information", properties)


@_tool()
async def test_elicitation_sep1330_enums(context: Any, params: Any) -> Made:
    def titled(**titles: str) -> list[Json]:
        return [{"const": const, "title": title} for const, title in titles.items()]

    properties = {
        "untitledSingle": {**_TEXT, "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            **_TEXT,
            "oneOf": titled(value1="First Option", value2="Second Option", value3="Third Option"),
        },
        "legacyEnum": {**_TEXT, "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {**_TEXT, "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": titled(value1="First Choice", value2="Second Choice", value3="Third Choice")},
        },
    }
    return await _form(context, "Please select values", properties)


@_tool()
async def test_error_handling(context: Any, params: Any) -> Made:
    text = types.TextContent(type="text", text="This tool intentionally returns an error for testing")
    return types.CallToolResult(content=[text], is_error=True)


@_tool({"region": {**_TEXT, "x-mcp-header": "Region"}})
async def test_x_mcp_header(context: Any, params: Any) -> Made:
    return _said(f"region={(params.arguments or {}).get('region')}")


@_tool()
async def test_missing_capability(context: Any, params: Any) -> Made:
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool requires the client 'sampling' capability",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return _said("sampling is declared")


def _ask(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=50))


def _filled(params: Any, key: str, field: str) -> Any:
    answer = (params.input_responses or {}).get(key)
    return (answer.content or {}).get(field) if isinstance(answer, types.ElicitResult) else None


@_tool()
async def test_input_required_result_elicitation(context: Any, params: Any) -> Made:
    if (name := _filled(params, "user_name", "name")) is not None:
        return _said(f"Hello, {name}!")
    return types.InputRequiredResult(input_requests={"user_name": _ask("What is your name?", "name")})


@_tool()
async def test_streaming_elicitation(context: Any, params: Any) -> Made:
    await context.session.report_progress(1, 2, "asks")
    return types.InputRequiredResult(input_requests={"user_name": _ask("What is your name?", "name")})


@_tool()
async def test_input_required_result_sampling(context: Any, params: Any) -> Made:
    answer = (params.input_responses or {}).get("capital_question")
    if isinstance(answer, types.CreateMessageResult):
        return _said(f"Model said: {getattr(answer.content, 'text', '')}")
    return types.InputRequiredResult(input_requests={"capital_question": _sample("What is the capital of France?")})


@_tool()
async def test_input_required_result_list_roots(context: Any, params: Any) -> Made:
    answer = (params.input_responses or {}).get("client_roots")
    if isinstance(answer, types.ListRootsResult):
        return _said(f"{len(answer.roots)} roots")
    return types.InputRequiredResult(input_requests={"client_roots": types.ListRootsRequest()})


@_tool()
async def test_input_required_result_request_state(context: Any, params: Any) -> Made:
    if _filled(params, "confirm", "ok") is not None and params.request_state == "nonce":
        return _said("state-ok")
    asked: Json = {"confirm": _ask("Please confirm", "ok", "boolean")}
    return types.InputRequiredResult(input_requests=asked, request_state="nonce")


@_tool()
async def test_input_required_result_multiple_inputs(context: Any, params: Any) -> Made:
    asked: Json = {
        "user_name": _ask("What is your name?", "name"),
        "greeting": _sample("Generate a greeting"),
        "client_roots": types.ListRootsRequest(),
    }
    if set(asked) <= set(params.input_responses or {}):
        return _said("all there")
    return types.InputRequiredResult(input_requests=asked, request_state="several")


@_tool()
async def test_input_required_result_multi_round(context: Any, params: Any) -> Made:
    state = json.loads(params.request_state or '{"round": 0}')
    if state["round"] == 1 and (name := _filled(params, "step1", "name")) is not None:
        second: Json = {"step2": _ask("Step 2: What is your favorite color?", "color")}
        return types.InputRequiredResult(input_requests=second, request_state=json.dumps({"round": 2, "name": name}))
    if state["round"] == 2 and (colour := _filled(params, "step2", "color")) is not None:
        return _said(f"{state['name']} likes {colour}.")
    asked: Json = {"step1": _ask("Step 1: What is your name?", "name")}
    return types.InputRequiredResult(input_requests=asked, request_state=json.dumps({"round": 1}))


@_tool()
async def test_input_required_result_tampered_state(context: Any, params: Any) -> Made:
    if params.request_state is not None:
        return _said("state-ok")
    asked: Json = {"confirm": _ask("Please confirm", "ok", "boolean")}
    return types.InputRequiredResult(input_requests=asked, request_state="first")


@_tool()
async def test_input_required_result_capabilities(context: Any, params: Any) -> Made:
    can = context.session.client_capabilities
    asked: Json = {}
    if can is not None and can.sampling is not None:
        asked["sample"] = _sample("Say hello")
    if can is not None and can.elicitation is not None:
        asked["ask"] = _ask("What is your name?", "name")
    return types.InputRequiredResult(input_requests=asked, request_state="capabilities")


@_tool(
    schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": _TEXT, "city": _TEXT},
            }
        },
        "properties": {
            "name": _TEXT,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {**_TEXT, "enum": ["phone", "email"]},
            "phone": _TEXT,
            "email": _TEXT,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(context: Any, params: Any) -> Made:
    return _said("json_schema_2020_12_tool")


@_tool()
async def test_reconnection(context: Any, params: Any) -> Made:
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await anyio.sleep(0.2)
    return _said("Reconnection test completed")


@_tool()
async def test_trigger_tool_change(context: Any, params: Any) -> Made:
    await _BUS.publish(ToolsListChanged())
    return _said("changed")


@_tool()
async def test_trigger_prompt_change(context: Any, params: Any) -> Made:
    await _BUS.publish(PromptsListChanged())
    return _said("changed")


def _message(*content: Any) -> list[types.PromptMessage]:
    return [types.PromptMessage(role="user", content=one) for one in content]


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


async def _prompt(context: Any, params: types.GetPromptRequestParams) -> Any:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            messages = _message(_text("This is a simple prompt for testing."))
        case "test_prompt_with_arguments":
            messages = _message(_text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
        case "test_prompt_with_embedded_resource":
            embedded = _embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            messages = _message(embedded, _text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            messages = _message(_IMAGE, _text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            if (given_context := _filled(params, "user_context", "context")) is None:
                request = _ask("What context should the prompt use?", "context")
                return types.InputRequiredResult(input_requests={"user_context": request})
            messages = _message(_text(f"Use the following context: {given_context}"))
        case _:
            raise MCPError(code=types.INVALID_PARAMS, message="Unknown prompt")
    return types.GetPromptResult(messages=messages)


_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
_RESOURCES: Mapping[str, Any] = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=_PNG),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="Watched resource content"
    ),
}


def add_fixtures(server: Server[Any]) -> None:
    """Add them to what ``server`` has: its own handlers are asked for everything else."""
    _add_tools(server)
    _add_resources(server)
    server.get_tool_input_schema = None  # the SDK then looks into the list of tools, where the fixtures are, too

    async def prompts(context: Any, params: Any) -> types.ListPromptsResult:
        listed = [
            types.Prompt(
                name=name,
                description=f"Fixture: {name}",
                arguments=[types.PromptArgument(name=one, required=True) for one in arguments],
            )
            for name, arguments in _PROMPTS.items()
        ]
        return types.ListPromptsResult(prompts=listed)

    async def nothing(context: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def completed(context: Any, params: Any) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=[], total=0, has_more=False))

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, _prompt)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, nothing)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, completed)
    server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(_BUS))


def _handler(server: Server[Any], method: str) -> Callable[..., Awaitable[Any]]:
    entry = server.get_request_handler(method)
    assert entry is not None, f"casemate's server answers {method}"
    return entry.handler


def _add_tools(server: Server[Any]) -> None:
    own_list, own_call = _handler(server, "tools/list"), _handler(server, "tools/call")

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        own = await own_list(context, params)
        both: types.ListToolsResult = own.model_copy(
            update={"tools": [*own.tools, *(one for one, _ in _TOOLS.values())]}
        )
        return both

    async def called(context: Any, params: types.CallToolRequestParams) -> Any:
        known = _TOOLS.get(params.name)
        return await (known[1] if known else own_call)(context, params)

    server.add_request_handler("tools/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("tools/call", types.CallToolRequestParams, called)


def _add_resources(server: Server[Any]) -> None:
    own_templates, own_read = _handler(server, "resources/templates/list"), _handler(server, "resources/read")

    async def listed(context: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri=uri, name=uri) for uri in _RESOURCES])

    async def templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        own = await own_templates(context, params)
        added = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
        both: types.ListResourceTemplatesResult = own.model_copy(
            update={"resource_templates": [*own.resource_templates, added]}
        )
        return both

    async def read(context: Any, params: types.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        one = _RESOURCES.get(uri)
        if one is None and uri.startswith("test://template/"):
            identity = uri.split("/")[3]
            text = json.dumps({"id": identity, "templateTest": True, "data": f"Data for ID: {identity}"})
            one = types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
        if one is None:
            return await own_read(context, params)
        return types.ReadResourceResult(contents=[one])

    server.add_request_handler("resources/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read)
