import { nodes } from './schemas.ts'

/** Keywords that structured outputs of OpenAI accept. */
const PERMITTED = new Set(
  `type properties required additionalProperties items enum const anyOf $ref $defs definitions description title
  pattern format multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minItems maxItems minLength maxLength
  $schema $id`.split(/\s+/),
)
const FORMATS = new Set('date-time time date duration email hostname ipv4 ipv6 uuid'.split(' '))

/** Writes a path as the vendor does: a tuple. */
export const context = (path: readonly string[]): string =>
  `(${path.map(name => `'${name}'`).join(', ')}${path.length === 1 ? ',' : ''})`

/** Yields why a schema does not fit constrained decoding, in the words of OpenAI. */
export function* strictProblems(schema: any): Generator<{ context: string; problem: string }> {
  if (schema?.type !== 'object')
    yield {
      context: '()',
      problem: `schema must be a JSON Schema of 'type: "object"', got 'type: "${schema?.type ?? 'None'}"'.`,
    }
  for (const { path, schema: node } of nodes(schema))
    for (const problem of problemsOf(node)) yield { context: context(path), problem }
}

function* problemsOf(node: Record<string, any>): Generator<string> {
  if ('$ref' in node) {
    const others = Object.keys(node).filter(key => key !== '$ref' && !['$defs', 'definitions'].includes(key))
    if (others.length > 0) yield `$ref cannot have keywords {${others.map(key => `'${key}'`).join(', ')}}.`
    return
  }
  for (const key of Object.keys(node)) if (!PERMITTED.has(key)) yield `'${key}' is not permitted.`
  if (node.format !== undefined && !FORMATS.has(node.format)) yield `'${node.format}' is not a valid format.`
  if (!('type' in node) && !('anyOf' in node) && !('enum' in node) && !('const' in node))
    yield "schema must have a 'type' key."
  if (node.type !== 'object') return
  if (node.additionalProperties !== false) yield "'additionalProperties' is required to be supplied and to be false."
  const missing = Object.keys(node.properties ?? {}).find(name => !(node.required ?? []).includes(name))
  if (missing !== undefined)
    yield `'required' is required to be supplied and to be an array including every key in properties. Missing '${missing}'.`
}
