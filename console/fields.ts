import fs from 'node:fs'
import path from 'node:path'
import type { Plugin } from 'vite'
import { FIELD_WORDS, type Words } from './src/strings/fields.ts'

/** A JSON Schema, as far as the forms of the console read it. */
type Schema = { [keyword: string]: unknown; properties?: Record<string, Schema> }
type Operation = { operationId: string; requestBody?: { content: Record<string, { schema: Schema }> } }

const PREFIX = 'fields:'

const wordsOf = (words: Words | undefined): { title?: string; description?: string } => {
  const [title, description] = typeof words === 'string' ? [undefined, words] : (words ?? [])
  return { ...(title ? { title } : {}), ...(description ? { description } : {}) }
}

/**
 * Offers the schema of an operation's body as a module: `import fields from 'fields:createWebhook'`. So forms have the
 * fields and limits of the API with the words of the console, and a view loads the fields of its operations alone. Schemas
 * of single fields are resolved; deeper ones are edited as JSON and left out. `fields:createTool.execute` has the fields
 * of an object in the body, `fields:putProjectPrices.prices` the fields of the entries of a list.
 */
export function fieldsOfOperations(): Plugin {
  const file = path.resolve(import.meta.dirname, '../client/openapi.json')
  const { paths, components } = JSON.parse(fs.readFileSync(file, 'utf8'))
  const operations = Object.values(paths).flatMap(item => Object.values(item as object)) as Operation[]
  const resolve = ({ $ref, ...own }: Schema): Schema =>
    typeof $ref === 'string' ? { ...resolve(components.schemas[$ref.slice($ref.lastIndexOf('/') + 1)]), ...own } : own
  const holdsSecret = (schema: unknown): boolean => {
    if (typeof schema !== 'object' || schema === null) return false
    const { $ref, ...own } = schema as Schema
    return own['x-secret'] === true || Object.values($ref ? resolve(schema as Schema) : own).some(holdsSecret)
  }
  const shallow = (schema: Schema): Schema => {
    const { properties, anyOf, oneOf, allOf, items, examples, description, ...rest } = resolve(schema)
    const choices = (anyOf ?? oneOf) as Schema[] | undefined
    return {
      ...rest,
      // Unsent input of a field with a secret in it is not stored.
      ...(holdsSecret(schema) ? { 'x-secret': true } : {}),
      ...(choices ? { anyOf: choices.map(shallow) } : {}),
      ...(items ? { items: shallow(items as Schema) } : {}),
    }
  }
  const fieldOf = ({ properties }: Schema, name: string): Schema => {
    const field = resolve(properties?.[name] ?? {})
    const choices = (field.anyOf ?? field.oneOf ?? [field]) as Schema[]
    const found = choices.map(resolve)
    return found.find(choice => choice.properties) ?? resolve((found.find(({ items }) => items)?.items as Schema) ?? {})
  }
  return {
    name: 'fields',
    resolveId: id => (id.startsWith(PREFIX) ? `\0${id}` : null),
    load(id) {
      if (!id.startsWith(`\0${PREFIX}`)) return null
      const [name, ...path] = id.slice(PREFIX.length + 1).split('.')
      const noun = name.replace(/^[a-z]+(?=[A-Z])/, '')
      const words = { ...FIELD_WORDS['*'], ...FIELD_WORDS[[noun, ...path].join('.')] }
      const operation = operations.find(({ operationId }) => operationId === name)
      const body = Object.values(operation?.requestBody?.content ?? {})[0]
      if (!body) this.error(`no operation ${name} with a body`)
      const { properties = {}, required = [] } = path.reduce(fieldOf, resolve(body.schema))
      const fields = Object.fromEntries(
        Object.entries(properties).map(([key, each]) => [key, { ...shallow(each), ...wordsOf(words[key]) }]),
      )
      return `export default ${JSON.stringify({ type: 'object', properties: fields, required })}`
    },
  }
}
