import assert from 'node:assert/strict'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { flatten } from '#core/api/flatten.ts'
import { operations as declared } from '#core/api/operation.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** What models, and people who change the arguments of a call, are shown of the operations that platform tools offer. */
describe('the schema of an action of a platform tool', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let document: any
  before(async () => {
    document = (await app.anonymous.get('//openapi.json')).body
  })

  type Operation = { id: string; method: string; path: string; body: any; parameters: any[] }

  const resolved = (schema: any): any =>
    schema?.$ref ? resolved(document.components.schemas[schema.$ref.split('/').at(-1)]) : schema
  const operations = (): Operation[] =>
    Object.entries<any>(document.paths).flatMap(([path, methods]) =>
      Object.entries<any>(methods)
        .filter(([, { operationId }]) => operationId)
        .map(([method, { operationId: id, requestBody, parameters = [] }]) => ({
          id,
          method,
          path,
          body: resolved(requestBody?.content?.['application/json']?.schema),
          parameters: parameters.filter((each: any) => ['path', 'query'].includes(each.in)),
        })),
    )
  const actionOf = (id: string) => id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`)

  /** Every operation that a tool may offer, with its action as `GET /tools/{id}/actions` shows it. */
  async function offered(): Promise<{ operation: Operation; schema: any }[]> {
    const all = new Map(operations().map(operation => [actionOf(operation.id), operation]))
    const names = [...all.keys()]
    const found: { operation: Operation; schema: any }[] = []
    // A tool offers at most 500.
    for (const some of [names.slice(0, 300), names.slice(300)]) {
      const rejected = await project.key.post('/tools', { name: 'api', type: 'platform', actions: some })
      const problems = rejected.body.error?.meta.problems.map(({ path }: any) => Number(/\d+/.exec(path)?.[0])) ?? []
      const actions = some.filter((_, index) => !problems.includes(index))
      const made = await project.key.post('/tools', { name: 'api', type: 'platform', actions })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const before = found.length
      for (let offset = 0; offset < actions.length; offset += 100) {
        const { data } = (await project.key.get(`/tools/${made.body.id}/actions?limit=100&offset=${offset}`)).body
        for (const { name, input_schema } of data)
          found.push({ operation: all.get(name) as Operation, schema: input_schema })
      }
      assert.equal(found.length - before, actions.length)
    }
    return found
  }

  it('has every parameter and field of its operation, described, and refers to nothing', async () => {
    const all = await offered()
    assert.ok(all.length > 400, `${all.length}`)
    const ajv = new Ajv2020({ strict: false, validateFormats: false })
    for (const { operation, schema } of all) {
      const { id, body, parameters } = operation
      const text = JSON.stringify(schema)
      assert.doesNotMatch(text, /"\$(ref|defs|schema)"/, id)
      assert.doesNotThrow(() => ajv.compile(schema), id)
      const fields = [...(flatten(declared.get(id))?.fields.values() ?? [])]
      const aliases = fields.filter(({ isAlias }) => isAlias).map(({ field }) => field)
      // They are fixed: a tool waits, and answers no stream. One name of a field is enough.
      const left = ['wait', 'stream', ...aliases]
      const names = [...parameters.map(({ name }) => name), ...Object.keys(body?.properties ?? {})].filter(
        name => !left.includes(name) && !name.startsWith('tags['),
      )
      const flat = fields.filter(({ field }) => !left.includes(field))
      const { map } = flatten(declared.get(id)) ?? {}
      const shown = [...flat, ...(map ? [map] : [])].map(({ name, schema }) => [name, schema])
      assert.deepEqual(schema.properties, Object.fromEntries(shown))
      assert.equal(schema.additionalProperties, false, id)
      const missing = names.filter(name => !Object.hasOwn(schema.properties, name))
      assert.deepEqual(missing, [], `${id} shows no ${missing}`)
      for (const name of names)
        assert.match(JSON.stringify(schema.properties[name]), /"description":"/, `${id}: ${name}`)
      const needed = (body?.required ?? []).filter((name: string) => !['wait', 'stream'].includes(name))
      if (needed.length > 0)
        assert.ok(
          needed.every((name: string) => schema.required?.includes(name)),
          id,
        )
    }
  })

  it('lets pass what the operation takes', async () => {
    const actor = (await project.key.post('/actors', { name: 'Ada' })).body
    const tool = await project.key.post('/tools', {
      name: 'tags',
      type: 'platform',
      actions: ['replace-actor-tags', 'update-actor'],
    })
    const { data } = (await project.key.get(`/tools/${tool.body.id}/actions`)).body
    const ajv = new Ajv2020({ strict: false, validateFormats: false })
    const calls = { 'replace-actor-tags': { tags: { team: 'desk' } }, 'update-actor': { name: 'Ada L.' } }
    for (const [action, fields] of Object.entries(calls)) {
      const input = { actor_id: actor.id, ...fields }
      const { input_schema } = data.find(({ name }: any) => name === action)
      assert.equal(ajv.validate(input_schema, input), true, `${action}: ${JSON.stringify(ajv.errors)}`)
      const reply = await project.key.post(`/tools/${tool.body.id}/call`, { action, input })
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
    }
  })
})
