import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { CELL_COUNT, type Client, eventually, type Reply, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { type Described, describedOperations, withoutSharing } from '../support/fuzz.ts'
import { populate } from '../support/populate.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
const ID = /^[a-z]+(_[a-z]+)*_[0-9a-hjkmnp-tv-z]{26}$/

const expectRefusal = (reply: Reply, status: number, code: string, what = ''): Json => {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], `${what} ${JSON.stringify(reply.body)}`)
  return reply.body.error
}

/** The path of an operation with real ids, relative to /api/v1. */
const pathWith = (described: Described, ids: Record<string, string>): string =>
  described.path
    .slice('/api/v1'.length)
    .replace(/(?<=\/messages\/)\{document_id\}/, ids.message_document_id)
    .replace(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? assert.fail(name))

/** Routes that check a separate token before they read the body. */
const WITH_TOKEN = ['uploadFileWithToken', 'completeIngestionCallback', 'callOrchestrationRunHook', 'callTriggerHook']

/** Fields of a read that events lack: fields for the reader, and counts of others without an event. */
const READ_ALONE: Record<string, readonly string[]> = {
  documents: ['content'],
  shares: ['acceptance', 'projection'],
  tasks: ['available_transitions'],
  cases: ['evidence_count', 'updated_at'],
  conversations: ['message_count', 'updated_at'],
  memory_stores: ['memory_count'],
  sessions: ['unread_count'],
  session_notes: ['text'],
}

/** Records without the time at which a list judged them. */
/** Reads with the id of a record that are another view of it. */
const RECOVERY = ['getGenerationRecovery', 'getRunRecovery']

const withoutTimes = (records: Json[]) =>
  records.map(record => Object.fromEntries(Object.entries(record).filter(([name]) => name !== 'judged_at')))

const hasId = (body: unknown): boolean => typeof body === 'object' && body !== null && 'id' in body

/** Lists of figures: a parameter that is unknown would seem to narrow them. */
const REFUSING = ['listUsageEvents']

describe('conventions', () => {
  const app = forSuite(startApp)
  let ids: Record<string, string>
  let operations: Described[]
  let schemas: Json
  before(async () => {
    ids = await populate(app)
    const document = withoutSharing((await app.anonymous.get('//openapi.json')).body)
    operations = describedOperations(document)
    schemas = document.components.schemas
  })

  const call = (client: Client, described: Described, body?: unknown, query = ''): Promise<Reply> => {
    const path = pathWith(described, ids) + query
    if (described.method === 'GET') return client.get(path)
    if (described.method === 'POST') return client.post(path, body)
    if (described.method === 'PUT') return client.put(path, body)
    if (described.method === 'PATCH') return client.patch(path, body)
    return fetch(`${app.url}/api/v1${path}`, {
      method: 'DELETE',
      headers: { authorization: `Bearer ${client.token}`, 'content-type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    }).then(async response => ({
      status: response.status,
      body: response.status === 204 ? null : await response.json(),
      headers: response.headers,
    }))
  }

  describe('every list', () => {
    // The activity feed has a cursor in place of an offset; an aggregate has a page of groups, and figures around it.
    const lists = () =>
      operations.filter(
        ({ id, operation }) =>
          id !== 'aggregateUsage' &&
          (operation.parameters as Json[] | undefined)?.some(
            ({ name, in: place }) => name === 'offset' && place === 'query',
          ),
      )
    /** What a list needs to answer at all. */
    const needed = (described: Described): string =>
      ({
        listWebhookDeliveries: `&webhook_id=${ids.webhook_id}`,
        listShareReferences: `&project_id=${ids.grantee_id}`,
        listTriggerFirings: `&trigger_id=${ids.trigger_id}`,
        compareEvalRuns: `&runs=${ids.eval_run_id}`,
        listMemories: `&memory_store_id=${ids.memory_store_id}`,
        listMemoryEntries: `&memory_store_id=${ids.memory_store_id}`,
      })[described.id] ?? ''
    // Reads its rows from a vendor.
    const local = () => lists().filter(({ id }) => id !== 'listAiProviderModels')
    const sizeOf = ({ id }: Described) =>
      id === 'listAuditEntries' ? { standard: 25, max: 200 } : { standard: 50, max: 100 }

    it('answers { data, total, limit, offset } with the standard size', async () => {
      assert.ok(local().length > 25)
      for (const list of local()) {
        const { status, body } = await call(app.admin, list, undefined, `?${needed(list)}`)
        assert.equal(status, 200, `${list.id} ${JSON.stringify(body)}`)
        assert.deepEqual(Object.keys(body), ['data', 'total', 'limit', 'offset'], list.id)
        assert.equal(body.limit, sizeOf(list).standard, list.id)
        assert.equal(body.offset, 0)
        assert.ok(Number.isInteger(body.total) && body.total >= body.data.length)
      }
    })

    it('treats a larger limit as its largest and says so', async () => {
      for (const list of local()) {
        const { status, body } = await call(app.admin, list, undefined, `?limit=1000000${needed(list)}`)
        assert.deepEqual([status, body.limit], [200, sizeOf(list).max], list.id)
        const small = await call(app.admin, list, undefined, `?limit=1${needed(list)}`)
        assert.equal(small.body.limit, 1)
        assert.ok(small.body.data.length <= 1)
        assert.equal(small.body.total, body.total, list.id)
      }
    })

    it('beyond its end is empty with the exact total', async () => {
      // Lists of several cells without a project begin early.
      const beyond = CELL_COUNT > 1 ? 999 : 999999999999999
      for (const list of local()) {
        const all = await call(app.admin, list, undefined, `?limit=1${needed(list)}`)
        const { status, body } = await call(app.admin, list, undefined, `?offset=${beyond}${needed(list)}`)
        assert.equal(status, 200, list.id)
        assert.deepEqual([body.data, body.total, body.offset], [[], all.body.total, beyond], list.id)
      }
    })

    it('refuses a limit below 1, a negative offset and values that are no integer', async () => {
      for (const list of local()) {
        for (const query of [
          'limit=0',
          'limit=-1',
          'limit=1.5',
          'limit=abc',
          'limit=',
          'limit=1&limit=2',
          'limit=0x10',
        ]) {
          const error = expectRefusal(
            await call(app.admin, list, undefined, `?${query}${needed(list)}`),
            400,
            'VALIDATION_FAILED',
            `${list.id} ${query}`,
          )
          assert.equal(error.meta.problems[0].path, 'limit')
        }
        for (const query of ['offset=-1', 'offset=1.5', 'offset=x', 'offset[a]=1', 'offset=1e3'])
          expectRefusal(
            await call(app.admin, list, undefined, `?${query}${needed(list)}`),
            400,
            'VALIDATION_FAILED',
            `${list.id} ${query}`,
          )
      }
    })

    it('refuses a bound that is repeated or no time', async () => {
      for (const list of local()) {
        for (const query of [
          'from=yesterday',
          'from=',
          'to=2026-13-01',
          'to=2026-02-30T00:00:00Z',
          'from=2026-01-01&from=2026-01-02',
          'to[]=2026-01-01&to[]=2026-01-02',
          'from=0000-01-01',
          'to=9999-12-31T23:59:59-14:00',
          'from=1700000000',
        ])
          expectRefusal(
            await call(app.admin, list, undefined, `?${query}${needed(list)}`),
            400,
            'VALIDATION_FAILED',
            `${list.id} ${query}`,
          )
        const fine = await call(
          app.admin,
          list,
          undefined,
          `?from=2020-01-01&to=2099-12-31T23:59:59.999%2B02:00${needed(list)}`,
        )
        assert.equal(fine.status, 200, list.id)
      }
    })

    it('has no page, cursor or sort parameter: they change nothing, or are refused', async () => {
      for (const list of local()) {
        const plain = await call(app.admin, list, undefined, `?limit=3${needed(list)}`)
        const asked = await call(
          app.admin,
          list,
          undefined,
          `?limit=3&page=2&cursor=x&sort=name&order=asc${needed(list)}`,
        )
        if (REFUSING.includes(list.id)) expectRefusal(asked, 400, 'VALIDATION_FAILED', list.id)
        else assert.deepEqual(withoutTimes(asked.body.data), withoutTimes(plain.body.data), list.id)
        const names = (list.operation.parameters as Json[]).map(({ name }) => name)
        for (const name of ['page', 'cursor', 'sort', 'order']) assert.ok(!names.includes(name), list.id)
      }
    })

    it('of records with a time of creation is newest first, ties in the reverse order of creation', async () => {
      const { id, key } = await app.project()
      for (let index = 0; index < 5; index++) await key.post('/actors', { name: `actor ${index}` })
      await app.services.pool.query(sql.unsafe`update actors set created_at = '2026-01-01' where project_id = ${id}`)
      const names = (await key.get('/actors')).body.data.map((actor: Json) => actor.name)
      assert.deepEqual(names, ['actor 4', 'actor 3', 'actor 2', 'actor 1', 'actor 0'])
      const pages: string[] = []
      for (let offset = 0; offset < 5; offset += 2)
        for (const actor of (await key.get(`/actors?limit=2&offset=${offset}`)).body.data) pages.push(actor.name)
      assert.deepEqual(pages, names)
    })
  })

  describe('bounds on the time of creation', () => {
    let key: Client
    before(async () => {
      const project = await app.project()
      key = project.key
      for (const [name, time] of [
        ['early', '2026-03-01T10:00:00.000Z'],
        ['middle', '2026-03-01T10:00:00.001Z'],
        ['late', '2026-03-02T00:00:00.000Z'],
      ]) {
        const { body } = await key.post('/actors', { name })
        await app.services.pool.query(sql.unsafe`update actors set created_at = ${time} where id = ${body.id}`)
      }
    })
    const names = async (query: string) => {
      const { status, body } = await key.get(`/actors?${query}`)
      assert.equal(status, 200, JSON.stringify(body))
      assert.equal(body.total, body.data.length)
      return body.data.map((actor: Json) => actor.name).sort()
    }

    it('are inclusive to the millisecond', async () => {
      assert.deepEqual(await names('from=2026-03-01T10:00:00.001Z&to=2026-03-01T10:00:00.001Z'), ['middle'])
      assert.deepEqual(await names('from=2026-03-01T10:00:00.001Z'), ['late', 'middle'])
      assert.deepEqual(await names('to=2026-03-01T10:00:00.000Z'), ['early'])
    })

    it('may be dates, and times of another zone', async () => {
      assert.deepEqual(await names('from=2026-03-02'), ['late'])
      assert.deepEqual(await names('to=2026-03-02'), ['early', 'late', 'middle'])
      assert.deepEqual(await names('to=2026-03-01T12:00:00%2B02:00'), ['early'])
      assert.deepEqual(await names('from=2026-03-01T10:00:00&to=2026-03-01T10:00'), ['early'])
    })

    it('that exclude everything give an empty page', async () => {
      assert.deepEqual(await names('from=2027-01-01&to=2026-01-01'), [])
    })
  })

  describe('a status filter', () => {
    const key = forSuite(async () => (await app.project()).key)
    before(async () => {
      const provider = await key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'm',
        base_url: 'http://127.0.0.1:9/v1',
      })
      const agent = await key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })
      for (const name of ['one', 'two', 'three']) {
        const made = await key.post('/sessions', { agent_id: agent.body.id, name })
        assert.equal(made.status, 201, JSON.stringify(made.body))
        if (name === 'two') await key.patch(`/sessions/${made.body.id}`, { status: 'closed' })
      }
    })

    it('may be repeated: its values are ORed', async () => {
      const total = async (query: string) => (await key.get(`/sessions?${query}`)).body.total
      assert.equal(await total('status=open'), 2)
      assert.equal(await total('status=closed'), 1)
      assert.equal(await total('status=open&status=closed'), 3)
      assert.equal(await total('status=expired'), 0)
    })

    it('outside its enum, or empty, is 400 on every list that has one', async () => {
      for (const { path, operation } of operations.filter(
        ({ method, path }) => method === 'GET' && !path.includes('{'),
      )) {
        const filters = ((operation.parameters ?? []) as Json[]).filter(({ name }) => /(^|_)status$/.test(name))
        for (const { name, schema } of filters) {
          if (!JSON.stringify(schema).includes('"enum"')) continue
          for (const value of ['', 'bogus', `${'open'}%20`, `${name}=`]) {
            const extra = path.endsWith('/webhook-deliveries') ? `&webhook_id=${ids.webhook_id}` : ''
            expectRefusal(
              await app.admin.get(`${path.slice('/api/v1'.length)}?${name}=${value}${extra}`),
              400,
              'VALIDATION_FAILED',
              `${path} ${name}=${value}`,
            )
          }
        }
      }
      expectRefusal(await key.get('/sessions?status=open&status=bogus'), 400, 'VALIDATION_FAILED')
      expectRefusal(await key.get('/sessions?status[a]=open'), 400, 'VALIDATION_FAILED')
    })
  })

  describe('a tag filter', () => {
    const key = forSuite(async () => (await app.project()).key)
    before(async () => {
      for (const [name, tags] of Object.entries({
        both: { team: 'red', tier: 'gold' },
        one: { team: 'red' },
        empty: { team: '' },
        none: {},
        camel: { costCenter: '1' },
        snake: { cost_center: '1' },
      })) {
        const { body } = await key.post('/actors', { name })
        assert.equal((await key.put(`/actors/${body.id}/tags`, tags)).status, 200)
      }
    })
    const names = async (query: string) =>
      (await key.get(`/actors?${query}`)).body.data.map((actor: Json) => actor.name).sort()

    it('matches exactly; several are ANDed', async () => {
      assert.deepEqual(await names('tags[team]=red'), ['both', 'one'])
      assert.deepEqual(await names('tags[team]=red&tags[tier]=gold'), ['both'])
      assert.deepEqual(await names('tags[team]=re'), [])
    })

    it('with an empty value matches the empty value only', async () => {
      assert.deepEqual(await names('tags[team]='), ['empty'])
    })

    it('keeps keys as they were written', async () => {
      assert.deepEqual(await names('tags[costCenter]=1'), ['camel'])
      assert.deepEqual(await names('tags[cost_center]=1'), ['snake'])
    })

    it('of another shape is 400', async () => {
      for (const query of ['tags=red', 'tags[a][b]=c', 'tags[]=x&tags[]=y&tags[team][]=z'])
        expectRefusal(await key.get(`/actors?${query}`), 400, 'VALIDATION_FAILED', query)
    })
  })

  describe('a body', () => {
    it('with an unknown property is refused by its name, everywhere', async () => {
      const changing = operations.filter(
        ({ id, method, operation: { requestBody } }) =>
          method !== 'GET' && !WITH_TOKEN.includes(id) && (!requestBody || requestBody.content['application/json']),
      )
      // A create must find its project before it checks the rest.
      const projectFor = ({ operation }: Described) => {
        const { schema } = operation.requestBody?.content['application/json'] ?? {}
        const named = schema?.$ref ? schemas[schema.$ref.split('/').at(-1)] : schema
        return named?.properties?.project_id ? { project_id: ids.project_id } : {}
      }
      assert.ok(changing.length > 60)
      // The query is checked before the body.
      const query: Record<string, string> = { deleteUserIdentity: '?issuer=https://login.example&subject=someone' }
      for (const described of changing) {
        const body = { ...projectFor(described), surprise_property: 1 }
        const error = expectRefusal(
          await call(app.admin, described, body, query[described.id]),
          400,
          'VALIDATION_FAILED',
          described.id,
        )
        const problem = error.meta.problems.find(({ path }: Json) => path === 'surprise_property')
        assert.ok(problem, `${described.id} ${JSON.stringify(error.meta)}`)
        if (!described.path.endsWith('/tags')) assert.equal(problem.code, 'UNKNOWN_PROPERTY', described.id)
      }
      // Nothing was done: everything is still there.
      for (const described of operations.filter(
        ({ id, method, operation }) =>
          method === 'GET' &&
          /^get/.test(id) &&
          // A conversation has no summary until it is long, and a turn that no worker takes has no step.
          !['getMe', 'getConversationSummary', 'getGenerationStepRequest'].includes(id) &&
          !operation.parameters?.some((parameter: Json) => parameter.in === 'query' && parameter.required),
      ))
        assert.equal((await call(app.admin, described)).status, 200, described.id)
    })

    it('with an unknown form field is refused by its name too', async () => {
      const forms = operations.filter(({ operation }) => operation.requestBody?.content['multipart/form-data'])
      assert.ok(forms.length > 0)
      for (const { method, path } of forms) {
        const token = (await app.admin.post('/files/presigned-url', { project_id: ids.project_id })).body.upload_token
        const form = new FormData()
        for (const [name, value] of Object.entries({ project_id: ids.project_id, surprise_property: '1' }))
          if (name !== 'project_id' || path.endsWith('/upload')) form.append(name, value)
        form.append('file', new Blob(['text']), 'a.txt')
        const url = `${app.url}${path.replace('{token}', token).replace('{file_id}', ids.file_id)}`
        const headers = { authorization: `Bearer ${app.admin.token}` }
        const { error } = (await (await fetch(url, { method, headers, body: form })).json()) as Json
        assert.equal(error.code, 'VALIDATION_FAILED', path)
        const [problem] = error.meta.problems
        assert.deepEqual([problem.code, problem.path], ['UNKNOWN_PROPERTY', 'surprise_property'], path)
      }
    })

    it('names an unknown property inside an object by its path', async () => {
      const error = expectRefusal(
        await app.admin.post('/sessions', {
          agent_id: ids.agent_id,
          actor: { external_id: 'x', name: 'y', surprise: 1 },
        }),
        400,
        'VALIDATION_FAILED',
      )
      assert.deepEqual(error.meta.problems[0], {
        code: 'UNKNOWN_PROPERTY',
        path: 'actor.surprise',
        message: 'is not a known property',
      })
    })

    it('leaves fields unchanged that a PATCH omits, clears nullable fields that it sets to null', async () => {
      const { key } = await app.project()
      const { body: actor } = await key.post('/actors', { name: 'a', instructions: 'be kind', metadata: { Key: 1 } })
      const renamed = await key.patch(`/actors/${actor.id}`, { name: 'b' })
      assert.deepEqual([renamed.body.instructions, renamed.body.metadata], ['be kind', { Key: 1 }])
      const cleared = await key.patch(`/actors/${actor.id}`, { instructions: null, metadata: null })
      assert.deepEqual([cleared.body.name, cleared.body.instructions, cleared.body.metadata], ['b', null, null])
      expectRefusal(await key.patch(`/actors/${actor.id}`, { name: null }), 400, 'VALIDATION_FAILED')
      const untouched = await key.patch(`/actors/${actor.id}`, {})
      assert.ok(untouched.status === 200 || untouched.status === 400)
      assert.equal((await key.get(`/actors/${actor.id}`)).body.name, 'b')
    })

    it('may leave optional values out or set them to null on create; the record has null', async () => {
      const { key } = await app.project()
      const [absent, nulled] = await Promise.all([
        key.post('/actors', { name: 'a' }),
        key.post('/actors', { name: 'a', external_id: null, instructions: null, agent_id: null, metadata: null }),
      ])
      for (const { status, body } of [absent, nulled]) {
        assert.equal(status, 201)
        for (const name of ['external_id', 'instructions', 'agent_id', 'chat_id', 'metadata'])
          assert.equal(body[name], null, name)
      }
      assert.deepEqual(Object.keys(absent.body).sort(), Object.keys(nulled.body).sort())
    })

    it('keeps the keys of bags as they are', async () => {
      const { key } = await app.project()
      const metadata = { camelCase: 1, snake_case: [{ InnerKey: null }], 'with space': 'ü', '': 0, __proto__x: {} }
      const { body } = await key.post('/actors', { name: 'a', metadata })
      assert.deepEqual(body.metadata, metadata)
      assert.deepEqual((await key.get(`/actors/${body.id}`)).body.metadata, metadata)
    })
  })

  describe('a record', () => {
    it('has an id of its kind and times in ISO 8601 with milliseconds, UTC', async () => {
      for (const described of operations.filter(({ id, method }) => method === 'GET' && /^get/.test(id))) {
        const { status, body } = await call(app.admin, described)
        if (status !== 200 || !hasId(body)) continue
        assert.match(body.id, ID, described.id)
        for (const [name, value] of Object.entries(body))
          if (name.endsWith('_at') && typeof value === 'string') assert.match(value, TIME, `${described.id} ${name}`)
        // An event's time is the time of its envelope; a document's status is a part of its record.
        assert.ok(
          'created_at' in body || ['getEvent', 'getDocumentStatus', ...RECOVERY].includes(described.id),
          described.id,
        )
      }
    })

    it('is what its newest event shows', async () => {
      const { pool } = app.services
      const compared: string[] = []
      const differing: Record<string, string[]> = {}
      for (const described of operations.filter(({ id, method }) => method === 'GET' && /^get/.test(id))) {
        const read = await call(app.admin, described)
        if (read.status !== 200 || !hasId(read.body) || RECOVERY.includes(described.id)) continue
        const of = (await storedEvents(pool, { resource: read.body.id })).at(-1)
        if (!of || compared.includes(read.body.id)) continue
        compared.push(read.body.id)
        const apart = READ_ALONE[of.name.split('.')[0]] ?? []
        const fields = Object.keys(read.body).filter(
          field => !apart.includes(field) && !isDeepStrictEqual(of.data[field], read.body[field]),
        )
        if (fields.length > 0) differing[of.name] = fields
      }
      assert.deepEqual(differing, {})
      assert.ok(compared.length > 20, `${compared.length}`)
    })

    it('is the same in the answer of its creation, its GET and its list', async () => {
      const { id: project_id, key } = await app.project()
      for (const [path, input] of [
        ['/actors', { name: 'a' }],
        ['/conversations', { name: 'a' }],
        ['/secrets', { name: 'a', value: 'v' }],
        ['/quotas', { scope: 'project', metric: 'tokens', window: 'rolling_1h', limit: 5 }],
        ['/ai-providers', { name: 'a', provider: 'custom', default_model: 'm', base_url: 'http://127.0.0.1:9/v1' }],
      ] as [string, object][]) {
        const made = await key.post(path, input)
        assert.equal(made.status, 201, JSON.stringify(made.body))
        assert.equal(made.body.project_id, project_id)
        const read = await key.get(`${path}/${made.body.id}`)
        assert.deepEqual(read.body, made.body, path)
        const listed = await key.get(path)
        assert.deepEqual(
          listed.body.data.find((item: Json) => item.id === made.body.id),
          made.body,
          path,
        )
      }
    })
  })

  describe('the order of checks', () => {
    const invalid = { surprise: 1 }
    const missing = `actor_${'0'.repeat(26)}`
    let actorPath: string
    let foreignPath: string
    let key: Client
    let limited: Client & { id: string }
    before(async () => {
      const project = await app.project()
      key = project.key
      actorPath = `/actors/${(await key.post('/actors', { name: 'a' })).body.id}`
      const foreign = await app.project()
      foreignPath = `/actors/${(await foreign.key.post('/actors', { name: 'a' })).body.id}`
      limited = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['actors:GetActor'], resource: [`srn:${project.id}:*:*`] }] },
        {
          statement: [
            { effect: 'Allow', action: ['actors:UpdateActor'], resource: [`srn:${project.id}:actor:actor_other`] },
          ],
        },
      ])
    })

    it('a bound key that names another project is refused for that, whatever its permissions there', async () => {
      const other = await app.project()
      const bound = app.as((await app.admin.post('/project-keys', { project_id: other.id })).body.secret)
      const policy = { statement: [{ effect: 'Allow', action: ['actors:GetActor'] }] }
      const { id } = (await app.admin.post('/policies', { document: policy })).body
      const weak = app.as(
        (await app.admin.post('/project-keys', { project_id: other.id, policy_ids: [id] })).body.secret,
      )
      const named = (await key.get('/users/me')).body.credential.project_id
      for (const caller of [bound, weak])
        for (const reply of [
          await caller.post('/actors', { project_id: named, name: 'a' }),
          await caller.get(`/actors?project_id=${named}`),
          await caller.get(`/projects/${named}`),
          await caller.delete(`/projects/${named}`),
          await caller.get(`/audit-log?project_id=${named}`),
          await caller.get('/webhooks?project_id=proj_00000000000000000000000000'),
          await caller.post('/project-keys', { project_id: named }),
          await caller.post('/documents', { project_id: named, content: 'x' }),
          await caller.post('/knowledge/search', { project_id: named, query: 'x' }),
          await caller.get(`/users/me/permissions?project_id=${named}`),
        ]) {
          expectRefusal(reply, 403, 'API_KEY_PROJECT_SCOPE')
          assert.equal(reply.body.error.meta.scoped_project, other.id)
          assert.ok(reply.body.error.meta.requested_project)
        }
    })

    it('a denied change is audited with its project and its resource, also by a caller without the action anywhere', async () => {
      const actorId = actorPath.split('/').pop() as string
      const projectId = (await key.get('/users/me')).body.credential.project_id
      const nobody = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['files:GetFile'] }] }])
      for (const [method, path, body, srn] of [
        ['patch', actorPath, { name: 'b' }, `srn:${projectId}:actor:${actorId}`],
        ['delete', actorPath, undefined, `srn:${projectId}:actor:${actorId}`],
        ['post', '/actors', { project_id: projectId, name: 'a' }, `srn:${projectId}:actor:*`],
      ] as const) {
        const reply = method === 'delete' ? await nobody.delete(path) : await nobody[method](path, body)
        expectRefusal(reply, 403, 'FORBIDDEN')
        const id = reply.headers.get('x-request-id')
        const { data } = (await app.admin.get(`/audit-log?project_id=${projectId}&limit=200`)).body
        const entry = data.find((each: any) => each.request_id === id)
        assert.deepEqual(
          [entry?.status, entry?.project_id, entry?.resource_srn],
          [403, projectId, srn],
          `${method} ${path}`,
        )
      }
      expectRefusal(await nobody.patch('/actors/actor_00000000000000000000000000', { name: 'b' }), 403, 'FORBIDDEN')
    })

    it('a body that cannot be parsed comes before the credential, the credential before everything else', async () => {
      expectRefusal(await app.anonymous.patch(actorPath, '{'), 400, 'VALIDATION_FAILED')
      expectRefusal(await app.anonymous.patch(actorPath, invalid), 401, 'UNAUTHORIZED')
      expectRefusal(await app.anonymous.patch(actorPath, '{"name":"\\u0000"}'), 401, 'UNAUTHORIZED')
      expectRefusal(await app.anonymous.get('/actors?limit=0&name=%00'), 401, 'UNAUTHORIZED')
      expectRefusal(await app.anonymous.get('/actors/%00'), 401, 'UNAUTHORIZED')
    })

    it('a requests quota comes before the id of the path', async () => {
      const project = await app.project()
      const quota = await app.admin.post('/quotas', {
        project_id: project.id,
        scope: 'project',
        metric: 'requests',
        window: 'rolling_1h',
        limit: 1,
        mode: 'enforce',
      })
      assert.equal(quota.status, 201)
      expectRefusal(await project.key.get(`/actors/${missing}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await project.key.get(`/actors/${missing}`), 429, 'QUOTA_EXCEEDED')
      expectRefusal(await project.key.patch(`/actors/${missing}`, invalid), 429, 'QUOTA_EXCEEDED')
      expectRefusal(await app.as('sk_unknown').get(`/actors/${missing}`), 401, 'UNAUTHORIZED')
    })

    it('an id that is missing or not to be seen comes before the permission on it', async () => {
      for (const path of [`/actors/${missing}`, foreignPath, '/actors/%00', '/actors/x%2Fy']) {
        expectRefusal(await limited.patch(path, invalid), 404, 'RESOURCE_NOT_FOUND', path)
        expectRefusal(await key.patch(path, invalid), 404, 'RESOURCE_NOT_FOUND', path)
      }
    })

    it('a missing id and an id of an invisible project are answered identically', async () => {
      const [gone, foreign] = [await limited.get(`/actors/${missing}`), await limited.get(foreignPath)]
      const plain = ({ body: { error } }: Reply) => JSON.parse(JSON.stringify(error).replaceAll(error.meta.id, 'id'))
      assert.deepEqual(plain(gone), plain(foreign))
      assert.equal(foreign.body.error.meta.id, foreignPath.split('/')[2])
    })

    it('an action that no project could give is 403 for every id alike', async () => {
      for (const path of [actorPath, foreignPath, `/actors/${missing}`])
        expectRefusal(await limited.delete(path), 403, 'FORBIDDEN', path)
    })

    it('the permission comes before the body', async () => {
      expectRefusal(await limited.patch(actorPath, invalid), 403, 'FORBIDDEN')
      expectRefusal(await limited.patch(actorPath, '{"name":"\\u0000"}'), 403, 'FORBIDDEN')
      expectRefusal(await limited.post('/actors', invalid), 403, 'FORBIDDEN')
      expectRefusal(await limited.get('/secrets?limit=0&name=%00'), 403, 'FORBIDDEN')
    })

    it('the body comes before the state', async () => {
      const { id } = await app.project()
      expectRefusal(await app.admin.post(`/projects/${id}/resume`, invalid), 400, 'VALIDATION_FAILED')
      expectRefusal(await app.admin.post(`/projects/${id}/resume`), 409, 'PROJECT_NOT_PAUSED')
    })

    it('a refused request changes nothing', async () => {
      const before = await key.get(actorPath)
      await limited.patch(actorPath, { name: 'changed' })
      await key.patch(actorPath, { name: 'changed', ...invalid })
      assert.deepEqual((await key.get(actorPath)).body, before.body)
    })
  })

  describe('the project of a request', () => {
    const project = forSuite(() => app.project())
    const other = forSuite(() => app.project())
    let wide: Client
    let narrow: Client
    const nowhere = `proj_${'0'.repeat(26)}`
    before(async () => {
      for (const { key } of [project, other]) await key.post('/actors', { name: 'a' })
      wide = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['actors:*'], resource: ['*'] }] }])
      narrow = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['actors:*'], resource: [`srn:${project.id}:*:*`] }] },
      ])
    })
    const create = (client: Client, project_id?: unknown) => client.post('/actors', { name: 'a', project_id })
    const list = (client: Client, id?: string) => client.get(`/actors${id === undefined ? '' : `?project_id=${id}`}`)

    it('absent, bound: the project of the credential', async () => {
      const made = await create(project.key)
      assert.deepEqual([made.status, made.body.project_id], [201, project.id])
      for (const actor of (await list(project.key)).body.data) assert.equal(actor.project_id, project.id)
    })

    it('absent, unbound, create: 400 at project_id', async () => {
      for (const client of [app.admin, wide, narrow]) {
        const error = expectRefusal(await create(client), 400, 'VALIDATION_FAILED')
        assert.equal(error.meta.problems[0].path, 'project_id')
        assert.equal(error.meta.problems[0].code, 'REQUIRED')
      }
    })

    it('absent, unbound, list: every project the caller may read', async () => {
      const projects = async (client: Client) =>
        new Set((await client.get('/actors?limit=100')).body.data.map((actor: Json) => actor.project_id))
      for (const client of [app.admin, wide]) {
        const seen = await projects(client)
        assert.ok(seen.has(project.id) && seen.has(other.id))
      }
      assert.deepEqual([...(await projects(narrow))], [project.id])
    })

    it('given, bound, equal: fine', async () => {
      assert.equal((await create(project.key, project.id)).status, 201)
      assert.equal((await list(project.key, project.id)).status, 200)
    })

    it('given, bound, different: 403 API_KEY_PROJECT_SCOPE, existing or not, recorded as a denial', async () => {
      for (const requested of [other.id, nowhere, '', 'x'.repeat(300), '\u0000', `${'a'.repeat(199)}😀`]) {
        const error = expectRefusal(await create(project.key, requested), 403, 'API_KEY_PROJECT_SCOPE')
        assert.deepEqual(error.meta, { scoped_project: project.id, requested_project: requested })
        const read = await list(project.key, encodeURIComponent(requested))
        expectRefusal(read, 403, 'API_KEY_PROJECT_SCOPE')
        const { body } = await app.admin.get(`/audit-log?project_id=${project.id}&action=actors:CreateActor&limit=1`)
        assert.equal(body.data[0].status, 403)
        assert.equal(body.data[0].detail.requested_project.slice(0, 30), requested.replace('\0', '\ufffd').slice(0, 30))
      }
    })

    it("the owner's role does not lift a binding", async () => {
      const bound = await app.admin.post('/project-keys', { project_id: project.id })
      expectRefusal(await list(app.as(bound.body.secret), other.id), 403, 'API_KEY_PROJECT_SCOPE')
    })

    it('given, unbound, not allowed there: 403, the same for missing and existing ids', async () => {
      for (const id of [other.id, nowhere, 'x']) {
        for (const reply of [await create(narrow, id), await list(narrow, id)]) {
          const error = expectRefusal(reply, 403, 'FORBIDDEN')
          assert.deepEqual(Object.keys(error.meta), ['action'])
        }
      }
    })

    it('given, unbound, allowed, missing: 404 with meta.id', async () => {
      for (const client of [app.admin, wide])
        for (const id of [nowhere, 'x'])
          for (const reply of [await create(client, id), await list(client, id)])
            assert.deepEqual(expectRefusal(reply, 404, 'RESOURCE_NOT_FOUND').meta, { id })
    })

    it('of another type than string: 400', async () => {
      for (const client of [app.admin, project.key])
        for (const value of [5, true, {}, [project.id]])
          expectRefusal(await create(client, value), 400, 'VALIDATION_FAILED')
      expectRefusal(await app.admin.get('/actors?project_id=a&project_id=b'), 400, 'VALIDATION_FAILED')
    })

    it('an unscoped key acts where its policies and its owner both allow it', async () => {
      const policy = await app.admin.post('/policies', {
        document: { statement: [{ effect: 'Allow', action: ['actors:*'], resource: [`srn:${project.id}:*:*`] }] },
      })
      const made = await app.admin.post('/project-keys', { policy_ids: [policy.body.id] })
      const key = app.as(made.body.secret)
      assert.equal((await create(key, project.id)).status, 201)
      expectRefusal(await create(key), 400, 'VALIDATION_FAILED')
      expectRefusal(await create(key, other.id), 403, 'FORBIDDEN')
      expectRefusal(await list(key, nowhere), 403, 'FORBIDDEN')
    })
  })

  describe('a list without permission', () => {
    it('is 403 where no row can be seen, an empty page of projects and of keys', async () => {
      const { id } = await app.project()
      const nobody = await app.user()
      for (const path of ['/actors', '/secrets', '/webhooks', '/quotas', '/agents', '/events', '/audit-log'])
        for (const query of ['', `?project_id=${id}`])
          expectRefusal(await nobody.get(`${path}${query}`), 403, 'FORBIDDEN', path)
      for (const path of ['/projects', '/project-keys']) {
        const { status, body } = await nobody.get(path)
        assert.deepEqual([status, body.data, body.total], [200, [], 0], path)
      }
    })

    it('leaves out the rows of one project that is denied and shows the rest with their exact total', async () => {
      const [one, two] = [await app.project(), await app.project()]
      for (const { key } of [one, two]) await key.post('/actors', { name: 'left or shown' })
      const user = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['actors:*'], resource: [`srn:${one.id}:*:*`, `srn:${two.id}:*:*`] },
            { effect: 'Deny', action: ['actors:ListActors'], resource: [`srn:${two.id}:actor:*`] },
          ],
        },
      ])
      const { status, body } = await user.get('/actors')
      assert.deepEqual([status, body.total, body.data.map(({ project_id }: Json) => project_id)], [200, 1, [one.id]])
      expectRefusal(await user.get(`/actors?project_id=${two.id}`), 403, 'FORBIDDEN')
    })
  })

  describe('a request that loses the race against a delete', () => {
    /** Deletes a row, sends a request, and commits the delete once the request waits for it. */
    async function during(table: string, id: string, send: () => Promise<Reply>): Promise<Reply> {
      const { pool } = app.servicesOf(id)
      let sent: Promise<Reply> | undefined
      await pool.transaction(async transaction => {
        await transaction.query(sql.unsafe`delete from ${sql.identifier([table])} where id = ${id}`)
        sent = send()
        const waits = () =>
          pool.exists(
            sql.unsafe`select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          )
        await eventually(() => onSeparateConnection(waits))
      })
      return await (sent as Promise<Reply>)
    }

    it('that deletes its resource is answered as if it came later', async () => {
      const { key } = await app.project()
      const provider = await key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'm',
        base_url: 'http://127.0.0.1:9/v1',
      })
      const agent = await key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })
      const path = `/agents/${agent.body.id}/generate?wait=false`
      const reply = await during('agents', agent.body.id, () => key.post(path, { prompt: 'hello' }))
      assert.deepEqual(expectRefusal(reply, 404, 'RESOURCE_NOT_FOUND').meta, { id: agent.body.id })
    })

    it('that deletes a resource in its body is answered as if it came later', async () => {
      const { id, key } = await app.project()
      const hook = await key.post('/webhooks', { name: 'h', url: 'http://127.0.0.1:9/', events: ['none.*'] })
      const event = (await app.admin.get(`/events?project_id=${id}&limit=1`)).body.data[0].id
      const reply = await during('webhooks', hook.body.id, () =>
        app.admin.post(`/events/${event}/redispatch`, { webhook_id: hook.body.id }),
      )
      assert.deepEqual(expectRefusal(reply, 404, 'RESOURCE_NOT_FOUND').meta, { id: hook.body.id })
    })

    it('that deletes its project is answered as if it came later', async () => {
      const { id } = await app.project()
      await app.rows('delete from project_keys where project_id = $1', [id])
      const reply = await during('projects', id, () => app.admin.post('/actors', { project_id: id, name: 'a' }))
      assert.deepEqual(expectRefusal(reply, 404, 'RESOURCE_NOT_FOUND').meta, { id })
    })
  })

  describe('versions of a record', () => {
    let key: Client
    let path: string
    beforeEach(async () => {
      key = (await app.project()).key
      path = `/actors/${(await key.post('/actors', { name: 'a' })).body.id}`
    })
    const tagOf = async () => (await key.get(path)).headers.get('etag') as string

    it('a GET of every record carries a weak ETag and answers 304 to who has it', async () => {
      let records = 0
      for (const described of operations.filter(({ id, method }) => method === 'GET' && /^get/.test(id))) {
        const { status, body, headers } = await call(app.admin, described)
        const named = described.path.endsWith('}') && hasId(body) && pathWith(described, ids).endsWith(body.id)
        if (status !== 200 || !named) continue
        const tag = headers.get('etag') ?? ''
        assert.match(tag, /^W\/"[\w-]+"$/, described.id)
        const again = await app.admin.get(pathWith(described, ids), { 'if-none-match': `"other", ${tag}` })
        // They show values that are measured or read next to the record.
        const more = [
          'getFormation',
          'getGeneration',
          'getPlaybookExecution',
          'getProjectKey',
          'getRun',
          'getShare',
          'getTask',
          'getTrigger',
        ].includes(described.id)
        assert.ok(again.status === 304 || more, `${described.id} ${again.status}`)
        records++
      }
      assert.ok(records > 12)
    })

    it('If-Match with the current tag lets a change through, whose tag is another one', async () => {
      const tag = await tagOf()
      assert.equal((await key.patch(path, { name: 'b' }, { 'if-match': tag })).status, 200)
      assert.notEqual(await tagOf(), tag)
    })

    it('If-Match with an old tag is 412 and changes nothing, for PATCH, PUT and DELETE', async () => {
      const old = await tagOf()
      await key.patch(path, { name: 'b' })
      expectRefusal(await key.patch(path, { name: 'c' }, { 'if-match': old }), 412, 'PRECONDITION_FAILED')
      expectRefusal(await key.put(`${path}/tags`, { a: 'b' }, { 'if-match': old }), 412, 'PRECONDITION_FAILED')
      expectRefusal(await key.delete(path, { 'if-match': old }), 412, 'PRECONDITION_FAILED')
      const { body } = await key.get(path)
      assert.deepEqual([body.name, body.tags ?? {}], ['b', {}])
      assert.equal((await key.delete(path, { 'if-match': await tagOf() })).status, 204)
    })

    it('If-Match takes several tags and *', async () => {
      const tag = await tagOf()
      assert.equal((await key.patch(path, { name: 'b' }, { 'if-match': `W/"x", ${tag}` })).status, 200)
      assert.equal((await key.patch(path, { name: 'c' }, { 'if-match': '*' })).status, 200)
      for (const wrong of ['W/"x"', 'garbage', '""'])
        expectRefusal(await key.patch(path, { name: 'd' }, { 'if-match': wrong }), 412, 'PRECONDITION_FAILED')
    })

    it('a 412 comes after permission and validation', async () => {
      expectRefusal(await key.patch(path, { name: 5 }, { 'if-match': 'W/"x"' }), 400, 'VALIDATION_FAILED')
      const user = await app.user()
      expectRefusal(await user.patch(path, { name: 'b' }, { 'if-match': 'W/"x"' }), 403, 'FORBIDDEN')
      expectRefusal(await key.patch('/actors/missing', { name: 'b' }, { 'if-match': '*' }), 404, 'RESOURCE_NOT_FOUND')
    })

    it('of many writers with the same tag one wins', async () => {
      for (let round = 0; round < 5; round++) {
        const tag = await tagOf()
        const replies = await Promise.all(
          Array.from({ length: 8 }, (_, index) => key.patch(path, { name: `${round} ${index}` }, { 'if-match': tag })),
        )
        const winners = replies.filter(({ status }) => status === 200)
        assert.equal(winners.length, 1)
        assert.ok(replies.every(({ status }) => status === 200 || status === 412))
        assert.equal((await key.get(path)).body.name, winners[0].body.name)
      }
    })
  })
})
