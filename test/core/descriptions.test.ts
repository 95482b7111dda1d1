import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { startApp } from '../support/app.ts'
import { withoutSharing } from '../support/fuzz.ts'

type Json = Record<string, any>

const METHODS = ['get', 'post', 'put', 'patch', 'delete']

describe('descriptions', () => {
  let document: Json

  before(async () => {
    loadModules(modules)
    const app = await startApp()
    document = withoutSharing((await app.anonymous.get('//openapi.json')).body)
    await app.close()
  })

  const target = (ref: string): Json =>
    ref
      .slice(2)
      .split('/')
      .reduce((node, key) => node[key], document)

  const isDescribed = (schema: Json): boolean =>
    typeof schema.description === 'string' ||
    (typeof schema.$ref === 'string' && isDescribed(target(schema.$ref))) ||
    [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])].some(isDescribed)

  /** Paths of the properties of a schema that have no description, each named schema once. */
  function undescribed(schema: Json, at: string, seen: Set<string>): string[] {
    const { $ref } = schema
    if (typeof $ref === 'string') {
      if (seen.has($ref)) return []
      seen.add($ref)
      return undescribed(target($ref), $ref.replace('#/components/schemas/', ''), seen)
    }
    const inner = (value: unknown, path: string) =>
      typeof value === 'object' && value !== null ? undescribed(value as Json, path, seen) : []
    return [
      ...Object.entries<Json>(schema.properties ?? {}).flatMap(([property, value]) => [
        // The one value of a discriminator is its description.
        ...(isDescribed(value) || value.const !== undefined ? [] : [`${at}.${property}`]),
        ...inner(value, `${at}.${property}`),
      ]),
      ...inner(schema.items, `${at}[]`),
      ...inner(schema.additionalProperties, `${at}.*`),
      ...['anyOf', 'oneOf', 'allOf', 'prefixItems'].flatMap(key =>
        ((schema[key] ?? []) as Json[]).flatMap(value => inner(value, at)),
      ),
    ]
  }

  it('exist on every operation, as a phrase', () => {
    const without = operations.all().filter(({ summary }) => !/^[A-Z].*[^.\s]$/s.test(summary))
    assert.deepEqual(
      without.map(({ id }) => id),
      [],
    )
  })

  it('exist on every parameter and every field that a caller sends, nested ones too', () => {
    const seen = new Set<string>()
    const missing = Object.values<Json>(document.paths).flatMap(path =>
      METHODS.flatMap(method => {
        const { operationId, parameters = [], requestBody } = path[method] ?? {}
        const contents = Object.values<Json>(requestBody?.content ?? {})
        return [
          ...(parameters as Json[]).filter(each => !each.description).map(each => `${operationId}?${each.name}`),
          ...contents.flatMap(({ schema }) => undescribed(schema, operationId, seen)),
        ]
      }),
    )
    assert.deepEqual(missing, [])
  })
})
