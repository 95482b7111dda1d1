import { type Description, resolve, type Schema } from './description.ts'

/** Types of the Python client: a TypedDict for each object, an alias for each other named schema. */

const KEYWORDS = new Set(
  `False None True and as assert async await break class continue def del elif else except finally for from global if
  import in is lambda nonlocal not or pass raise return try while with yield`.split(/\s+/),
)

/** Returns a name that Python accepts: reserved words have an underscore after them. */
export const identifier = (name: string): string => (KEYWORDS.has(name) ? `${name}_` : name)

const isIdentifier = (name: string): boolean => /^(?!__)[A-Za-z_]\w*$/.test(name) && !KEYWORDS.has(name)

/** Returns a name of the API as the name of a type. */
export const pascal = (name: string): string =>
  name.replace(/(?:^|[^A-Za-z0-9]+)([A-Za-z0-9])/g, (_, letter: string) => letter.toUpperCase())

const SCALARS: Record<string, string> = {
  string: 'str',
  integer: 'int',
  number: 'float',
  boolean: 'bool',
  null: 'None',
}

/** Returns a scalar of JSON as Python. */
export const literal = (value: unknown): string => {
  if (value === null) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  return JSON.stringify(value)
}

/** Returns a documentation string. */
export const docstring = (text: string, indent: string): string => {
  const safe = text.replaceAll('\\', '\\\\').replaceAll('"""', "'''")
  return `${indent}"""${safe}${safe.endsWith('"') ? ' ' : ''}"""\n`
}

type Reference = (type: string) => string

/** The module of types, and annotations that refer to it. */
export class PythonTypes {
  readonly #description: Description
  /** Definitions by name, in the order of the file. */
  readonly #definitions = new Map<string, string>()

  constructor(description: Description) {
    this.#description = description
    // Their names are taken before nested objects get one.
    for (const name of Object.keys(description.components.schemas)) this.#definitions.set(name, '')
    for (const [name, schema] of Object.entries(description.components.schemas)) this.#define(name, schema)
  }

  /**
   * Returns the annotation of a schema.
   * @param name name of an object without one
   * @param refer returns a reference to a type; in the module of types it is a text, because the type may follow
   */
  of(schema: Schema | undefined, name: string, refer: Reference = type => `"${type}"`): string {
    return this.#union(this.#alternatives(schema, name, refer))
  }

  /** Returns the text of the module. */
  source(head: string): string {
    return `${head}"""Records and inputs of the API. Objects are plain dictionaries; these types are for type checkers."""

from typing import Any, Dict, List, Literal, TypedDict, Union

${[...this.#definitions.values()].join('\n')}`
  }

  #union(alternatives: readonly string[]): string {
    const all = [...new Set(alternatives)]
    return all.includes('Any') ? 'Any' : all.length === 1 ? all[0] : `Union[${all.join(', ')}]`
  }

  #alternatives(schema: Schema | undefined, name: string, refer: Reference): string[] {
    if (!schema) return ['Any']
    const { $ref, anyOf, oneOf, type, enum: values, const: value } = schema
    if ($ref) return [refer($ref.split('/').at(-1) as string)]
    const branches = anyOf ?? oneOf
    if (branches)
      return branches.flatMap((each, index) =>
        this.#alternatives(each, branches.length > 1 ? `${name}${index + 1}` : name, refer),
      )
    const literals = values ?? (value === undefined ? undefined : [value])
    if (literals) return [`Literal[${literals.map(literal).join(', ')}]`]
    const types = typeof type === 'string' ? [type] : (type ?? (schema.properties ? ['object'] : []))
    return types.length === 0 ? ['Any'] : types.map(each => this.#ofType(each, schema, name, refer))
  }

  #ofType(type: string, schema: Schema, name: string, refer: Reference): string {
    if (type === 'array') return `List[${this.of(schema.items, `${name}Item`, refer)}]`
    if (type !== 'object') return SCALARS[type] ?? 'Any'
    const { properties, additionalProperties } = schema
    if (properties && Object.keys(properties).length > 0 && !additionalProperties)
      return refer(this.#nested(name, schema))
    const values =
      properties || typeof additionalProperties !== 'object'
        ? 'Any'
        : this.of(additionalProperties, `${name}Value`, refer)
    return `Dict[str, ${values}]`
  }

  /** Defines an object under a free name and returns the name. */
  #nested(wanted: string, schema: Schema): string {
    let name = wanted
    for (let count = 2; this.#definitions.has(name); count++) name = `${wanted}_${count}`
    this.#definitions.set(name, '')
    this.#defineObject(name, schema)
    return name
  }

  #define(name: string, schema: Schema): void {
    const { type, properties, additionalProperties, anyOf, oneOf } = schema
    if (type === 'object' && properties && !additionalProperties && !anyOf && !oneOf) this.#defineObject(name, schema)
    else {
      const type = this.of(schema, `${name}Value`)
      // A text alone is no type.
      this.#definitions.set(name, `${name} = ${type.startsWith('"') ? `Union[${type}]` : type}\n`)
    }
  }

  #defineObject(name: string, schema: Schema): void {
    const fields = Object.entries(schema.properties ?? {}).map(([field, each]) => ({
      field,
      type: this.of(each, `${name}${pascal(field)}`),
      isRequired: schema.required?.includes(field) ?? false,
      text: each.description ?? resolve(this.#description, each).description,
    }))
    const required = fields.filter(({ isRequired }) => isRequired)
    const optional = fields.filter(({ isRequired }) => !isRequired)
    const doc = schema.description ? docstring(schema.description, '    ') : ''
    // The syntax of functions accepts every name of a field.
    if (!fields.every(({ field }) => isIdentifier(field))) {
      const part = (suffix: string, total: boolean, all: typeof fields): string =>
        `_${name}${suffix} = TypedDict("_${name}${suffix}", {${all.map(({ field, type }) => `${literal(field)}: ${type}`).join(', ')}}${total ? '' : ', total=False'})\n`
      const text = `${part('Required', true, required)}${part('Optional', false, optional)}\n\nclass ${name}(_${name}Required, _${name}Optional):\n${doc || '    pass\n'}`
      this.#definitions.set(name, `${text}\n`)
      return
    }
    const lines = (all: typeof fields): string =>
      all.map(({ field, type, text }) => `    ${field}: ${type}\n${text ? docstring(text, '    ') : ''}`).join('')
    const base = required.length > 0 && optional.length > 0 ? `_${name}Required` : null
    const basis = base ? `class ${base}(TypedDict):\n${lines(required)}\n\n` : ''
    const own = base ? optional : fields
    const total = optional.length > 0 ? ', total=False' : ''
    this.#definitions.set(
      name,
      `${basis}class ${name}(${base ?? 'TypedDict'}${total}):\n${doc}${lines(own) || (doc ? '' : '    pass\n')}\n`,
    )
  }
}
