import assert from 'node:assert/strict'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { parse } from 'yaml'
import { policyActions } from '#core/api/catalogue.ts'
import { operations } from '#core/api/operation.ts'
import { errorCodes, errorEntry } from '#core/base/errors.ts'
import { startApp } from '../support/app.ts'
import { codesOf, type Described, describedOperations, withoutSharing } from '../support/fuzz.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Operations that no policy guards: public ones, and reads that any credential may make about itself or the service. */
const WITHOUT_ACTION = [
  'bootstrapUser',
  'loginUser',
  'completeIngestionCallback',
  'callOrchestrationRunHook',
  'callTriggerHook',
  'getMe',
  'listOwnPermissions',
  'listPermissions',
  'listEventRegistry',
]

/** Actions that policies may name although no operation is guarded by them alone. */
const withoutOperation = (): string[] => policyActions.all().map(({ action }) => action)

const at = (document: Json, pointer: string): unknown =>
  pointer
    .slice(2)
    .split('/')
    .reduce<any>((node, key) => node?.[decodeURIComponent(key).replaceAll('~1', '/').replaceAll('~0', '~')], document)

/** Every object in a document with the path to it. */
function* nodes(value: unknown, path = '#'): Generator<[string, Json]> {
  if (typeof value !== 'object' || value === null) return
  yield [path, value as Json]
  for (const [key, item] of Object.entries(value)) yield* nodes(item, `${path}/${key}`)
}

describe('the OpenAPI document', () => {
  const app = forSuite(() => startApp({ env: { FILES_MAX_UPLOAD_BYTES: '1000', FILES_INLINE_MAX_BYTES: '500' } }))
  let document: Json
  let described: Described[]
  before(async () => {
    document = (await app.anonymous.get('//openapi.json')).body
    described = describedOperations(withoutSharing(document))
  })

  describe('as a document', () => {
    it('is OpenAPI 3.1 with one server whose baseUrl is http://localhost:5047', () => {
      assert.match(document.openapi, /^3\.1\.\d+$/)
      assert.deepEqual(document.servers, [
        { url: '{baseUrl}', variables: { baseUrl: { default: 'http://localhost:5047' } } },
      ])
      for (const name of ['title', 'version', 'description']) assert.ok(document.info[name])
      assert.deepEqual(document.info.license, { name: 'Apache-2.0', identifier: 'Apache-2.0' })
    })

    it('is the same as YAML, and for every caller', async () => {
      const yaml = await app.anonymous.get('//openapi.yaml')
      assert.match(yaml.headers.get('content-type') as string, /^application\/yaml/)
      assert.deepEqual(parse(yaml.body as string), document)
      assert.deepEqual((await app.admin.get('//openapi.json')).body, document)
    })

    it('carries the error catalogue that is served alone', async () => {
      assert.deepEqual(document['x-error-codes'], (await app.anonymous.get('//errors.json')).body)
    })

    it('resolves every reference and has no component that nothing refers to', () => {
      const used = new Set<string>()
      for (const [path, node] of nodes(document)) {
        if (typeof node.$ref !== 'string') continue
        assert.ok(at(document, node.$ref), `${path} refers to ${node.$ref}`)
        used.add(node.$ref)
      }
      for (const name of Object.keys(document.components.schemas))
        assert.ok(used.has(`#/components/schemas/${name}`), `nothing refers to ${name}`)
    })

    it('has only schemas that are JSON Schema 2020-12', () => {
      const ajv = new Ajv2020({ strict: false, validateFormats: false })
      ajv.addSchema({ ...document, $id: 'openapi' })
      for (const [path, node] of nodes(document)) {
        for (const key of ['schema']) {
          if (typeof node[key] !== 'object' || path.includes('/properties')) continue
          assert.ok(ajv.validateSchema(node[key]), `${path}/${key} ${ajv.errorsText()}`)
        }
      }
      for (const [name, schema] of Object.entries(document.components.schemas)) {
        assert.ok(ajv.validateSchema(schema as object), `${name} ${ajv.errorsText()}`)
        ajv.compile({ $ref: `openapi#/components/schemas/${name}` })
      }
    })

    it('holds nothing that only zod understands', () => {
      for (const [path, node] of nodes(document)) {
        for (const key of ['$defs', '$schema', '$id', '~standard']) assert.ok(!(key in node), `${path}/${key}`)
        if (Array.isArray(node.enum)) assert.ok(node.enum.length > 0, path)
      }
    })
  })

  describe('every operation', () => {
    it('has a unique id, a summary, and a tag that is declared', () => {
      const ids = described.map(({ id }) => id)
      assert.equal(new Set(ids).size, ids.length)
      const tags = document.tags.map(({ name }: Json) => name)
      for (const { id, operation } of described) {
        assert.match(id, /^[a-z][A-Za-z0-9]+$/)
        assert.match(operation.summary, /^[A-Z][^\n]{3,120}[^.\n]$/, id)
        assert.equal(operation.tags.length, 1)
        assert.ok(tags.includes(operation.tags[0]), id)
      }
      assert.deepEqual([...new Set(described.map(({ operation }) => operation.tags[0]))].sort(), [...tags].sort())
    })

    it('declares the parameters of its path, each once, and only those', () => {
      for (const { id, path, operation } of described) {
        const parameters = (operation.parameters ?? []) as Json[]
        const keys = parameters.map(({ name, in: place }) => `${place} ${name}`)
        assert.equal(new Set(keys).size, keys.length, id)
        const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(match => match[1])
        assert.deepEqual(
          parameters.filter(({ in: place }) => place === 'path').map(({ name }) => name),
          inPath,
          id,
        )
        for (const parameter of parameters) {
          assert.ok(parameter.schema, `${id} ${parameter.name}`)
          if (parameter.in === 'path') assert.equal(parameter.required, true, id)
        }
      }
    })

    it('names its required action; none only where none is required', () => {
      for (const { id, operation } of described) {
        const action = operation['x-iam-action']
        if (WITHOUT_ACTION.includes(id)) assert.equal(action, null, id)
        else assert.match(action, /^[a-z][a-z-]*:[A-Z][A-Za-z]+$/, id)
      }
    })

    it('is public only where credentials are made or brought along', () => {
      const open = described.filter(({ operation }) => operation.security?.length === 0).map(({ id }) => id)
      assert.deepEqual(open.sort(), [
        'bootstrapUser',
        'callOrchestrationRunHook',
        'callTriggerHook',
        'completeIngestionCallback',
        'loginUser',
        'uploadFileWithToken',
      ])
      assert.deepEqual(document.security, [{ bearer: [] }])
      assert.ok(document.components.securitySchemes.bearer)
    })

    it('describes its input', () => {
      for (const { id, method, operation } of described) {
        const names = ((operation.parameters ?? []) as Json[]).filter(({ in: place }) => place === 'header')
        const has = (name: string) => names.some(parameter => parameter.name === name)
        if (method === 'GET' || method === 'DELETE') assert.equal(operation.requestBody, undefined, id)
        const stores = method === 'POST' && operation.security === undefined && !operations.get(id).reads
        assert.equal(has('Idempotency-Key'), stores, id)
        if (operation.requestBody) {
          assert.equal(typeof operation.requestBody.required, 'boolean')
          const contents = Object.values(operation.requestBody.content as Json)
          assert.ok(contents.length > 0 && contents.every(({ schema }) => schema), id)
        }
      }
    })

    it('describes its answers: a schema for each success, the error shape for each refusal', () => {
      for (const { id, operation } of described) {
        const success = Object.entries(operation.responses as Record<string, Json>).filter(([status]) => status < '300')
        assert.ok(success.length > 0, id)
        for (const [status, response] of success) {
          assert.ok(response.description, id)
          if (status === '204') assert.equal(response.content, undefined, id)
          else
            for (const content of Object.values((response.content ?? assert.fail(`${id} ${status}`)) as Json))
              assert.ok(content.schema, `${id} ${status}`)
        }
        for (const [status, response] of Object.entries(operation.responses as Record<string, Json>)) {
          if (status < '400') continue
          assert.deepEqual(response.content['application/json'].schema, { $ref: '#/components/schemas/Error' }, id)
          for (const code of codesOf({ operation } as Described, Number(status)))
            assert.ok((errorCodes() as string[]).includes(code), `${id} ${code}`)
          for (const code of response['x-error-codes'])
            if (code !== 'REQUEST_REJECTED')
              assert.equal(errorEntry(code as never).status, Number(status), `${id} ${code}`)
        }
        for (const code of operation['x-error-codes'] ?? [])
          assert.ok(
            code === 'REQUEST_REJECTED' || operation.responses[errorEntry(code as never).status],
            `${id} ${code}`,
          )
        assert.ok(operation.responses[500], id)
        if (operation.security === undefined)
          for (const status of [401, 403, 429]) assert.ok(operation.responses[status], id)
      }
    })

    it('answers records that carry all their keys', () => {
      for (const [name, schema] of Object.entries(document.components.schemas as Record<string, Json>)) {
        // What a search found is no record: it has a score only where something was ranked. A secret is shown where there is
        // one, and so are warnings.
        if (!schema.properties?.created_at || /Input|Patch|Result$|With(Secret|Warnings)$/.test(name)) continue
        assert.deepEqual([...(schema.required ?? [])].sort(), Object.keys(schema.properties).sort(), name)
      }
    })
  })

  describe('and the routes', () => {
    it('come from one table: all declared routes are listed, and all listed routes are described', () => {
      const line = ({ id, method, path }: { id: string; method: string; path: string }) =>
        `${id} ${method.toUpperCase()} ${path}`
      const listed = operations.all().map(line).sort()
      assert.deepEqual(described.map(item => line({ ...item, path: item.path.slice('/api/v1'.length) })).sort(), listed)
    })

    it('every operation that is described is routed', async () => {
      for (const { id, method, path } of described) {
        const response = await fetch(app.url + path.replace(/\{\w+\}/g, 'x'), {
          method,
          headers: { authorization: `Bearer ${app.admin.token}` },
          body: method === 'GET' ? undefined : '{"surprise_property":1}',
        })
        const text = await response.text()
        assert.doesNotMatch(text, /No route/, id)
        assert.notEqual(response.status, 500, id)
      }
    })

    it('refuse bodies and ranges with statuses that are described', async () => {
      const { key } = await app.project()
      const seen: string[] = []
      const send = async (id: string, path: string, init: RequestInit) => {
        const { status } = await fetch(`${app.url}/api/v1${path}`, {
          ...init,
          headers: { authorization: `Bearer ${key.token}`, ...init.headers },
        })
        const { operation } = described.find(item => item.id === id) as Described
        assert.ok(operation.responses[status], `${id} ${status}`)
        seen.push(`${id} ${status}`)
      }
      const form = (bytes: number) => {
        const body = new FormData()
        body.set('file', new Blob([Buffer.alloc(bytes)]), `${bytes}.bin`)
        return { method: 'POST', body }
      }
      await send('uploadFile', '/files/upload', form(1001))
      await send('uploadFile', '/files/upload', { ...form(9), headers: { 'content-encoding': 'zstd-of-ours' } })
      await send('createDocument', '/documents', {
        method: 'POST',
        body: '{}',
        headers: { 'content-type': 'application/json; charset=koi8-r' },
      })
      await send('uploadFile', '/files/upload', form(501))
      const [file] = (await key.get('/files')).body.data
      const download = `/files/${file.id}/download`
      await send('downloadFileBase64', `${download}/base64`, {})
      await send('downloadFile', download, { headers: { range: 'bytes=501-' } })
      await send('downloadFile', download, { headers: { range: 'bytes=1-2' } })
      await send('downloadFile', download, { headers: { 'if-none-match': '*' } })
      assert.deepEqual(seen, [
        'uploadFile 413',
        'uploadFile 415',
        'createDocument 415',
        'uploadFile 201',
        'downloadFileBase64 413',
        'downloadFile 416',
        'downloadFile 206',
        'downloadFile 304',
      ])
    })

    it('narrow by time the lists that describe from and to, and no other', async () => {
      const project_id = (await app.project()).id
      const { id: document_id, file_id } = (await app.admin.post('/documents', { project_id, content: 'x' })).body
      const { id: user_id } = (await app.admin.get('/users/me')).body
      const ids: Json = { document_id, file_id, user_id, project_id }
      const lists = described.filter(
        ({ id, path, operation }) =>
          // Figures with a page of groups.
          id !== 'aggregateUsage' &&
          operation.parameters?.some(({ name }: Json) => name === 'offset') &&
          !operation.parameters.some(({ required, in: place }: Json) => required && place === 'query') &&
          [...path.matchAll(/\{(\w+)\}/g)].every(([, name]) => name in ids),
      )
      // One of several parameters is required.
      const store = (await app.admin.post('/memory-stores', { project_id, name: 'x' })).body.id
      const needed: Json = { listMemoryEntries: 'memory_id=none', listMemories: `memory_store_id=${store}` }
      const untimed: string[] = []
      for (const { id, path, operation } of lists) {
        const address = `${path.slice('/api/v1'.length).replace(/\{(\w+)\}/g, (_, name) => ids[name])}?${needed[id] ?? ''}`
        const every = await app.admin.get(address)
        const late = await app.admin.get(`${address}&from=9998-01-01T00:00:00Z`)
        assert.deepEqual([every.status, late.status], [200, 200], id)
        const timed = operation.parameters.some(({ name }: Json) => name === 'from')
        assert.equal(late.body.total, timed ? 0 : every.body.total, id)
        if (!timed && every.body.total > 0) untimed.push(id)
      }
      for (const id of ['listFileDependents', 'listDocumentChunks', 'listPermissions', 'listEventRegistry'])
        assert.ok(untimed.includes(id), id)
      assert.ok(lists.length > 20)
    })

    it('take bytes as they are where a body is neither JSON nor a form', () => {
      const { operation } = described.find(({ id }) => id === 'replaceFileContent') as Described
      assert.deepEqual(operation.requestBody.content['application/octet-stream'].schema, {
        type: 'string',
        format: 'binary',
      })
    })

    it('the properties a body requires are required', async () => {
      const project_id = (await app.project()).id
      let bodies = 0
      for (const { id, method, path, operation } of described) {
        const schema = operation.requestBody?.content['application/json']?.schema as Json | undefined
        const named = schema?.$ref ? (at(document, schema.$ref) as Json) : schema
        if (!named?.required?.length || path.includes('{') || method !== 'POST') continue
        const { status, body } = await app.admin.post(
          path.slice('/api/v1'.length),
          named.properties?.project_id ? { project_id } : {},
        )
        assert.equal(status, 400, `${id} ${JSON.stringify(body)}`)
        const missing = body.error.meta.problems.filter(({ code }: Json) => code === 'REQUIRED')
        const paths = missing.map((problem: Json) => problem.path)
        for (const name of named.required.filter((name: string) => !('default' in (named.properties[name] ?? {}))))
          assert.ok(paths.includes(name), `${id} ${name}: ${JSON.stringify(body.error.meta)}`)
        bodies++
      }
      assert.ok(bodies > 8)
    })
  })

  describe('and the action catalogue', () => {
    const catalogued = async (): Promise<Map<string, Json>> => {
      const { body } = await app.admin.get('/permissions?limit=100')
      return new Map(body.data.flatMap(({ actions }: Json) => actions.map((entry: Json) => [entry.action, entry])))
    }

    it('has every action of the modules there are, and no other', async () => {
      const asked = operations.all().flatMap(({ action }) => action ?? [])
      const expected = [...new Set([...asked, ...withoutOperation()])]
      assert.deepEqual([...(await catalogued()).keys()].sort(), expected.sort())
    })

    it('names the operations that require each action, and each operation names its action', async () => {
      const actions = await catalogued()
      for (const { id, operation } of described) {
        const action = operation['x-iam-action']
        if (action !== null) assert.ok(actions.get(action)?.operation_ids.includes(id), `${id} ${action}`)
        for (const also of operation['x-iam-also'] ?? []) assert.ok(actions.has(also), `${id} ${also}`)
      }
      for (const [action, entry] of actions) {
        assert.deepEqual(
          Object.keys(entry).sort(),
          ['action', 'description', 'gate', 'operation_ids', 'resource_type'],
          action,
        )
        for (const id of entry.operation_ids)
          assert.equal(described.find(item => item.id === id)?.operation['x-iam-action'], action)
      }
      assert.deepEqual(
        [...actions.values()]
          .filter(({ operation_ids }) => operation_ids.length === 0)
          .map(({ action }) => action)
          .sort(),
        withoutOperation().sort(),
      )
    })

    it('is written `<module>:<Verb><Singular>`, lists in the plural', async () => {
      for (const action of (await catalogued()).keys()) assert.match(action, /^[a-z]+(-[a-z]+)*:[A-Z][A-Za-z]+$/)
    })
  })

  describe('and the other documents', () => {
    const paths = ['/openapi.json', '/openapi.yaml', '/errors.json', '/docs', '/docs/errors', '/docs/permissions']

    it('are served with an entity tag and may be kept for a minute', async () => {
      for (const path of paths) {
        const { status, headers } = await app.anonymous.get(`/${path}`)
        assert.equal(status, 200, path)
        assert.equal(headers.get('cache-control'), 'max-age=60')
        const tag = headers.get('etag') as string
        assert.match(tag, /^W\/"[\w-]+"$/)
        for (const wanted of [tag, `"x", ${tag}`, '*']) {
          const again = await app.anonymous.get(`/${path}`, { 'if-none-match': wanted })
          assert.deepEqual([again.status, again.body], [304, null], path)
        }
        assert.equal((await app.anonymous.get(`/${path}`, { 'if-none-match': 'W/"x"' })).status, 200)
      }
    })

    it('answer HEAD like GET, without a body; so do health and metrics', async () => {
      for (const path of [...paths, '/healthz', '/readyz', '/metrics']) {
        const get = await app.anonymous.get(`/${path}`)
        const head = await fetch(app.url + path, { method: 'HEAD' })
        assert.equal(head.status, 200, path)
        assert.equal(await head.text(), '')
        assert.equal(head.headers.get('content-type'), get.headers.get('content-type'), path)
        assert.equal(head.headers.get('etag'), get.headers.get('etag'), path)
      }
    })
  })
})
