# A bash that was started before its program was known sources this file through BASH_ENV, before it opens its program.
# It waits here for an order on descriptor 6: shell text up to a NUL byte, which sets the program's variables. Without
# an order it ends. An order that begins with a comment is a session's, whose requests follow on the same descriptor.
# The comment after the order in `eval` keeps `$_` as it was.
CASEMATE_UNDERSCORE=$_
IFS= read -r -d '' -u 6 CASEMATE_ORDER 2>/dev/null || exit 0
[[ $CASEMATE_ORDER == "#"* ]] || exec 6<&-
while IFS=$'\t' read -r CASEMATE_FROM CASEMATE_TO; do  # maps cell paths to real ones
    [[ $CASEMATE_ORDER == *"$CASEMATE_FROM"* ]] || continue
    for CASEMATE_LAST in {=,:,\'}{/,:,\',$'\n'}; do
        CASEMATE_ORDER=${CASEMATE_ORDER//"${CASEMATE_LAST:0:1}$CASEMATE_FROM${CASEMATE_LAST:1}"/"${CASEMATE_LAST:0:1}$CASEMATE_TO${CASEMATE_LAST:1}"}
    done
done <<<"$CASEMATE_PLACES"
eval "unset -v BASH_ENV CASEMATE_ORDER CASEMATE_LAST CASEMATE_PLACES CASEMATE_FROM CASEMATE_TO CASEMATE_UNDERSCORE; $CASEMATE_ORDER
SECONDS=0 #" "$CASEMATE_UNDERSCORE"
