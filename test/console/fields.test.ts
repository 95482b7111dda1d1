import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { fieldsOfOperations } from '../../console/fields.ts'
import { FIELD_WORDS } from '../../console/src/strings/fields.ts'

const source = path.resolve(import.meta.dirname, '../../console/src')

/** Whether a text speaks of null, of names of the API, or of types of JSON. */
const isOfApi = (text: string): boolean => /\bnull\b|`|\b(string|integer|boolean|array|object)s?\b/i.test(text)

type Fields = { properties: Record<string, { title?: string; description?: string }> }

describe('the fields of forms in the console', () => {
  const load = fieldsOfOperations().load as unknown as (this: object, id: string) => string
  const imported = fs
    .globSync('**/*.{ts,tsx}', { cwd: source })
    .flatMap(file => [...fs.readFileSync(path.join(source, file), 'utf8').matchAll(/from '(fields:[\w.]+)'/g)])
    .map(([, id]) => id)
  const schemas = [...new Set(imported)].map(id => {
    const text = load.call({ error: (message: string) => assert.fail(message) }, `\0${id}`)
    return [id, JSON.parse(text.replace('export default ', '')) as Fields] as const
  })

  it('have words of the console, none of the description of the API', () => {
    assert.ok(schemas.length > 70)
    const words = new Set(Object.values(FIELD_WORDS).flatMap(Object.values).flat())
    for (const [id, { properties }] of schemas)
      for (const [name, { title, description }] of Object.entries(properties))
        for (const text of [title, description])
          assert.ok(text === undefined || words.has(text), `${id} ${name}: ${text}`)
  })

  it('have no help that speaks of null, of names of the API or of types of JSON', () => {
    const texts = Object.values(FIELD_WORDS).flatMap(Object.values).flat().filter(Boolean) as string[]
    assert.ok(texts.length > 200)
    assert.deepEqual(texts.filter(isOfApi), [])
  })
})
