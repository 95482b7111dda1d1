/** A schema within a schema: the names that lead to it, and the schema. */
export type Node = { path: string[]; schema: Record<string, any> }

const isObject = (value: unknown): value is Record<string, any> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Keywords whose values are schemas by name, lists of schemas, and schemas. */
const NAMED = ['properties', '$defs', 'definitions', 'patternProperties']
const LISTED = ['anyOf', 'oneOf', 'allOf', 'prefixItems']
const SINGLE = ['items', 'additionalProperties', 'not', 'if', 'then', 'else', 'contains']

/** Yields a schema and all schemas within it, with paths as vendors write them. */
export function* nodes(schema: unknown, path: string[] = []): Generator<Node> {
  if (!isObject(schema)) return
  yield { path, schema }
  for (const key of NAMED)
    for (const [name, inner] of Object.entries(isObject(schema[key]) ? schema[key] : {}))
      yield* nodes(inner, [...path, key, name])
  for (const key of LISTED)
    if (Array.isArray(schema[key]))
      for (const [index, inner] of schema[key].entries()) yield* nodes(inner, [...path, key, String(index)])
  for (const key of SINGLE) yield* nodes(schema[key], [...path, key])
}

/** Returns whether a schema accepts only values of a type, or values of it among others. */
export const hasType = ({ type }: Record<string, any>, name: string): boolean =>
  type === name || (Array.isArray(type) && type.includes(name))

export const UNIONS = ['anyOf', 'oneOf', 'allOf']
