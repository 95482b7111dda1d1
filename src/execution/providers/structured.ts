import type { ModelRequest, VendorNote } from './model-messages.ts'

/** The instruction for an answer of JSON without a schema: vendors refuse the format in a request without the word. */
export const JSON_INSTRUCTION = 'Answer with one JSON object and nothing else.'

/** Returns the instruction for vendors that accept no schema. */
export const schemaInstruction = (schema: object): string =>
  `Answer with one JSON value and nothing else. It must satisfy this JSON Schema:\n${JSON.stringify(schema)}`

/** Keywords of constrained decoding. Vendors refuse a schema with any other. */
const SUPPORTED = new Set([
  '$schema',
  '$id',
  '$ref',
  '$defs',
  'definitions',
  'title',
  'description',
  'type',
  'properties',
  'required',
  'additionalProperties',
  'items',
  'minItems',
  'maxItems',
  'enum',
  'const',
  'anyOf',
  'pattern',
  'format',
  'multipleOf',
  'minimum',
  'maximum',
  'exclusiveMinimum',
  'exclusiveMaximum',
])

const FORMATS = ['date-time', 'time', 'date', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid']

/**
 * Whether a schema is in the subset for constrained decoding: an object at the top, every object closed, every property
 * required and typed, and no keyword that vendors refuse. Other schemas are sent as guidance (`strict: false`).
 */
export function fitsStrictMode(schema: object): boolean {
  const top = schema as Record<string, unknown>
  return top.type === 'object' && top.anyOf === undefined && nodeFits(schema)
}

function nodeFits(node: unknown): boolean {
  if (typeof node !== 'object' || node === null || Array.isArray(node)) return false
  const schema = node as Record<string, unknown>
  const keywords = Object.keys(schema)
  if (!keywords.every(keyword => SUPPORTED.has(keyword))) return false
  if ('$ref' in schema && keywords.length > 1) return false
  if (!['type', '$ref', 'anyOf', 'enum', 'const'].some(keyword => keyword in schema)) return false
  if ('format' in schema && !FORMATS.includes(schema.format as string)) return false
  const properties = (schema.properties ?? {}) as Record<string, unknown>
  if (schema.type === 'object' || schema.properties) {
    const required = new Set(Array.isArray(schema.required) ? schema.required : [])
    if (schema.additionalProperties !== false) return false
    if (Object.keys(properties).some(name => !required.has(name))) return false
  }
  if (schema.type === 'array' && schema.items === undefined) return false
  const nested = [
    ...Object.values(properties),
    ...Object.values((schema.$defs ?? {}) as object),
    ...Object.values((schema.definitions ?? {}) as object),
    ...(Array.isArray(schema.anyOf) ? schema.anyOf : []),
    ...(schema.items === undefined ? [] : [schema.items]),
  ]
  return nested.every(nodeFits)
}

/** Returns tools that are strict only where the vendor can constrain calls to their schemas, with notes about the others. */
export function strictTools(
  tools: ModelRequest['tools'],
  isTaken: boolean,
): { tools: ModelRequest['tools']; notes: VendorNote[] } {
  const notes: VendorNote[] = []
  const sent = tools.map(({ strict, ...tool }) => {
    if (!strict) return tool
    if (isTaken && fitsStrictMode(tool.parameters)) return { ...tool, strict }
    const reason = isTaken ? 'the schema cannot be strict' : 'the vendor has no strict tools'
    notes.push({ kind: 'setting_left_out', setting: STRICT_TOOLS, message: `${tool.name}: ${reason}` })
    return tool
  })
  return { tools: sent, notes }
}

/** Name of the setting among ignored ones. */
export const STRICT_TOOLS = 'tools.strict'
