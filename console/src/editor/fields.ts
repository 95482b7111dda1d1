import type { Choice } from '#choices.ts'
import { type FieldSchema, fieldLabel, inputOf, settled, type Values } from '#components/schema-form.tsx'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'

/** How a field is edited: like in other forms, or as an expression, names with expressions, or rules. */
export type FieldInput = ReturnType<typeof inputOf> | 'expression' | 'mapping' | 'rules'

/** A field of a node or an edge. */
export type Field = {
  /** Path in the node or edge, such as retry.max_attempts. */
  name: string
  input: FieldInput
  schema: FieldSchema
  label: string
  description?: string
  /** Values to choose from. */
  choices?: Choice[]
  /** Texts that are offered; others may be entered. */
  suggestions?: string[]
  /** Whether the field is one of those that most nodes leave empty. */
  isMore?: boolean
}

/** Fields with names and an expression each. */
const MAPPINGS = ['input_mapping', 'state_mapping', 'arguments', 'payload_writes']

/** Returns the description of a field for people: the names of its node types are not needed where one node is shown. */
export const aboutOf = (description: string | undefined): string | undefined =>
  description?.replace(/^[a-z_]+(?:, [a-z_]+)*: /, '').replaceAll('`', '')

/** Returns the schema of a field of a node without the alternative for node types that ignore the field. */
function ownSchema({ anyOf, description, ...own }: FieldSchema): FieldSchema {
  const choices = anyOf?.filter(({ description }) => !description?.startsWith('Any value'))
  const about = aboutOf(description)
  return settled(choices ? { ...choices[0], ...own, description: about } : { ...own, description: about })
}

/** Returns the values of a field with their names, where they have names. */
function choicesOf(name: string): Choice[] | undefined {
  const named = (strings.editor.choices as Record<string, Record<string, string> | undefined>)[name]
  return named && Object.entries(named).map(([value, label]) => ({ value, label }))
}

/** Returns a field of a node or an edge that has a schema. */
export function fieldOf(name: string, schema: FieldSchema = {}, more: Partial<Field> = {}): Field {
  const own = ownSchema(schema)
  const last = name.slice(name.lastIndexOf('.') + 1)
  const input = MAPPINGS.includes(last)
    ? 'mapping'
    : own.type === undefined && !own.enum
      ? 'expression'
      : inputOf(last, own)
  return {
    name,
    input,
    schema: own,
    label: (strings.editor.labels as Record<string, string>)[name] ?? fieldLabel(last),
    description: own.description,
    choices: choicesOf(name),
    ...more,
  }
}

/** Returns the value at a path. */
export const valueAt = (part: Values, name: string): unknown =>
  name.split('.').reduce<unknown>((value, key) => (isObject(value) ? value[key] : undefined), part)

/** Returns a part with another value at a path. A value of undefined is removed, with objects that it leaves empty. */
export function withValue(part: Values, name: string, value: unknown): Values {
  const [key, ...rest] = name.split('.')
  const next = rest.length > 0 ? withValue(isObject(part[key]) ? part[key] : {}, rest.join('.'), value) : value
  const isEmpty = next === undefined || (rest.length > 0 && Object.keys(next as object).length === 0)
  if (!isEmpty) return { ...part, [key]: next }
  const { [key]: _, ...kept } = part
  return kept
}
