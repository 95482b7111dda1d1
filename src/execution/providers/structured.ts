/** Returns the instruction for vendors that accept no schema. */
export const schemaInstruction = (schema: object): string =>
  `Answer with one JSON value and nothing else. It must satisfy this JSON Schema:\n${JSON.stringify(schema)}`

const UNSUPPORTED = [
  'oneOf',
  'allOf',
  'not',
  'if',
  'then',
  'else',
  'patternProperties',
  'propertyNames',
  'dependentSchemas',
  'dependentRequired',
  'dependencies',
  'unevaluatedProperties',
  'prefixItems',
  'contains',
]

/**
 * Whether a schema is in the subset for constrained decoding: an object at the top, every object closed, every property
 * required. Other schemas are sent as guidance (`strict: false`), because vendors would refuse them.
 */
export function fitsStrictMode(schema: object): boolean {
  const top = schema as Record<string, unknown>
  return top.type === 'object' && top.anyOf === undefined && nodeFits(schema)
}

function nodeFits(node: unknown): boolean {
  if (typeof node !== 'object' || node === null || Array.isArray(node)) return false
  const schema = node as Record<string, unknown>
  if (UNSUPPORTED.some(keyword => keyword in schema)) return false
  const properties = (schema.properties ?? {}) as Record<string, unknown>
  if (schema.type === 'object' || schema.properties) {
    const required = new Set(Array.isArray(schema.required) ? schema.required : [])
    if (schema.additionalProperties !== false) return false
    if (Object.keys(properties).some(name => !required.has(name))) return false
  }
  const nested = [
    ...Object.values(properties),
    ...Object.values((schema.$defs ?? {}) as object),
    ...Object.values((schema.definitions ?? {}) as object),
    ...(Array.isArray(schema.anyOf) ? schema.anyOf : []),
    ...(schema.items === undefined ? [] : [schema.items]),
  ]
  return nested.every(nodeFits)
}
