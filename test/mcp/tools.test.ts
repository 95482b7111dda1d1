import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import { operationTools } from '#mcp/registry.ts'
import { fixedTools } from '#mcp/tools.ts'
import { startApp } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { MODERN, tools, wire } from './support.ts'

const OLD = '2025-11-25'
const FIXED = ['call-tool', 'describe-tools', 'get-doc-page', 'get-docs', 'search-tools']

/** Operations as tools: which there are, and what a call of one does. */
describe('tools of /mcp', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let call: ReturnType<typeof tools>
  before(async () => {
    call = tools(app.url, project.key.token)
  })

  async function listed(token: string | null, query: string, url = app.url): Promise<any[]> {
    const send = wire(url, token)
    const all = []
    let cursor: string | undefined
    do {
      const { body } = await send('tools/list', cursor ? { cursor } : {}, { query })
      assert.ok(body.result, JSON.stringify(body))
      assert.ok(body.result.tools.length <= 200)
      all.push(...body.result.tools)
      cursor = body.result.nextCursor
    } while (cursor)
    return all
  }
  const names = (all: any[]) => all.map(({ name }) => name)

  it('lists five by default, in at most 4 KB', async () => {
    const { body } = await wire(app.url, project.key.token)('tools/list')
    assert.deepEqual(names(body.result.tools), FIXED)
    assert.ok(JSON.stringify(body.result.tools).length < 4096, `${JSON.stringify(body.result.tools).length}`)
    assert.equal(body.result.ttlMs, 300_000)
    assert.equal(body.result.cacheScope, 'public')
  })

  it('lists every operation once, the same in every process', async () => {
    const web = await runWeb(app.databaseUrl)
    try {
      const [here, there] = await Promise.all([
        listed(app.admin.token, '?tools=all'),
        listed(app.admin.token, '?tools=all', web.url),
      ])
      assert.equal(JSON.stringify(here), JSON.stringify(there))
      const all = names(here)
      assert.equal(new Set(all).size, all.length)
      assert.deepEqual(all, [...all].sort())
      for (const name of all) assert.match(name, /^[a-z][a-z0-9]*(-[a-z0-9]+)*$/)
      const kebab = (id: string) => id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`)
      const missing = operations
        .all()
        .map(({ id }) => kebab(id))
        .filter(name => !all.includes(name))
      assert.deepEqual(missing.sort(), LEFT_OUT)
      assert.ok(all.includes('tools-call-tool'))
      for (const { name, inputSchema } of here) {
        assert.doesNotMatch(JSON.stringify(inputSchema), /"\$ref"/, name)
        assert.ok(!('stream' in inputSchema.properties), name)
        assert.ok(!inputSchema.required?.includes('project_id'), name)
        assert.equal(inputSchema.additionalProperties, false, name)
      }
    } finally {
      await web.stop()
    }
  })

  it('narrows the list by modules and to reads, and refuses an unknown module', async () => {
    const files = await listed(project.key.token, '?modules=files,actors')
    assert.ok(names(files).includes('create-file') && names(files).includes('merge-actor'))
    assert.ok(!names(files).includes('list-agents') && !names(files).includes('search-tools'))
    assert.ok(names(files).includes('get-docs'))
    const reads = await listed(project.key.token, '?modules=actors&read_only=true')
    const readsOfActors = ['get-actor', 'get-actor-overview', 'get-actor-tags', 'list-actors']
    assert.deepEqual(names(reads), [...readsOfActors, 'get-doc-page', 'get-docs'].sort())
    assert.deepEqual(names(await listed(project.key.token, '?read_only=true')), FIXED)
    for (const query of ['?modules=nope', '?tools=some', '?read_only=1', '?permitted=yes']) {
      const { status, body } = await wire(app.url, project.key.token)('tools/list', {}, { query })
      assert.equal(status, 400, query)
      assert.equal(body.error.code, 'VALIDATION_FAILED')
    }
  })

  it('confines calls to modules and to reads, also those by call-tool', async () => {
    const actor = (await call('create-actor', { name: 'Kept' })).structuredContent
    for (const query of ['?read_only=true', '?modules=files', '?modules=files&read_only=true'])
      for (const [name, args] of [
        ['delete-actor', { actor_id: actor.id }],
        ['call-tool', { name: 'delete-actor', arguments: { actor_id: actor.id } }],
      ] as const)
        assert.equal((await call(name, args, { query })).error.code, -32602, `${query} ${name}`)
    assert.equal((await project.key.get(`/actors/${actor.id}`)).status, 200)
    assert.equal((await call('get-actor', { actor_id: actor.id }, { query: '?read_only=true' })).isError, undefined)
  })

  it('omits tools that the credential may not use anywhere', async () => {
    const { key } = await app.projectWith(['actors:ListActors'])
    assert.deepEqual(
      names(await listed(key.token, '?tools=all&permitted=true')).filter(name => name.includes('actor')),
      ['list-actors'],
    )
    const { body } = await wire(app.url, key.token)('tools/list', {}, { query: '?permitted=true' })
    assert.deepEqual([body.result.cacheScope, body.result.ttlMs], ['private', 10_000])
    const powerless = await app.projectWith(['files:DeleteFile'])
    const policies = await app.admin.post('/policies', { document: { statement: [] } })
    if (policies.status === 201)
      await app.admin.patch(`/project-keys/${powerless.keyId}`, { policy_ids: [policies.body.id] })
    else await app.admin.patch(`/project-keys/${powerless.keyId}`, { policy_ids: [await nothing()] })
    const ask = tools(app.url, powerless.key.token)
    assert.deepEqual(names(await listed(powerless.key.token, '?tools=all&permitted=true')), FIXED)
    const found = (await ask('search-tools', { query: 'delete a file' })).structuredContent
    assert.deepEqual(found.tools, [])
    assert.ok(found.hidden > 0)
    for (const { name, inputSchema } of await listed(app.admin.token, '?tools=all')) {
      // Keys of others are hidden from everybody, whatever may be done with one's own.
      if (FIXED.includes(name) || ANYBODY.includes(name) || /project-key/.test(name)) continue
      const required = Object.fromEntries(
        (inputSchema.required ?? []).map((field: string) => [field, sample(inputSchema.properties[field])]),
      )
      const result = await ask(name, required)
      assert.equal(result.structuredContent?.error.code, 'FORBIDDEN', `${name} ${JSON.stringify(result)}`)
    }
  })

  /** A policy that allows nothing that there is. */
  const nothing = async (): Promise<string> =>
    (
      await app.admin.post('/policies', {
        document: { statement: [{ effect: 'Deny', action: ['*'], resource: ['*'] }] },
      })
    ).body.id

  it('returns records like REST, in both protocol versions', async () => {
    for (const revision of [MODERN, OLD]) {
      const args = { filename: `${revision}.txt`, tags: { cost_center: revision } }
      const made = await call('create-file', args, { revision })
      const read = (await project.key.get(`/files/${made.structuredContent.id}`)).body
      assert.deepEqual(read.tags, args.tags)
      assert.deepEqual(JSON.parse(made.content[0].text), made.structuredContent)
      assert.deepEqual((await call('get-file', { file_id: read.id }, { revision })).structuredContent, read)
      const page = (await call('list-files', { limit: 1, tags: args.tags }, { revision })).structuredContent
      assert.equal(page.limit, 1)
      assert.equal(page.data.length, 1)
    }
  })

  it('creates resources of a bound key in its project', async () => {
    const made = (await call('create-secret', { name: 'token', value: 'hidden' })).structuredContent
    assert.equal(made.project_id, project.id)
    assert.deepEqual((await call('delete-secret', { secret_id: made.id })).structuredContent, { deleted: true })
    assert.equal((await project.key.get(`/secrets/${made.id}`)).status, 404)
    assert.equal((await call('get-project', {})).structuredContent.id, project.id)
    const unbound = tools(app.url, app.admin.token)
    assert.equal((await unbound('get-project', {})).structuredContent.error.code, 'VALIDATION_FAILED')
    assert.equal((await unbound('create-actor', { name: 'A' })).structuredContent.error.code, 'VALIDATION_FAILED')
    assert.equal((await unbound('create-actor', { name: 'A', project_id: project.id })).structuredContent.name, 'A')
  })

  it('refuses an argument that a tool does not have by its name, of every tool', async () => {
    const accepted: string[] = []
    const names = [...operationTools(), ...fixedTools()].map(({ name }) => name)
    assert.ok(names.length > 400)
    for (let at = 0; at < names.length; at += 16)
      await Promise.all(
        names.slice(at, at + 16).map(async name => {
          const { isError, structuredContent } = await call(name, { no_such_argument: 'x' })
          const problems = structuredContent?.error?.meta?.problems ?? []
          if (!isError || !problems.some(({ path }: any) => path === 'no_such_argument')) accepted.push(name)
        }),
      )
    assert.deepEqual(accepted, [])
  })

  it('takes tags as one argument, of the project of a bound key as well', async () => {
    const { id } = (await call('create-actor', { name: 'A' })).structuredContent
    const tags = { cost_center: 'x', actor_id: 'y' }
    await call('merge-actor-tags', { actor_id: id, tags })
    assert.deepEqual((await project.key.get(`/actors/${id}/tags`)).body, tags)
    await call('merge-actor-tags', { actor_id: id, tags: { cost_center: null } })
    assert.deepEqual((await project.key.get(`/actors/${id}/tags`)).body, { actor_id: 'y' })
    const loose = (await call('replace-actor-tags', { actor_id: id, cost_center: 'z' })).structuredContent
    assert.deepEqual(
      loose.error.meta.problems.map(({ path }: any) => path),
      ['tags', 'cost_center'],
    )
    await call('replace-project-tags', { tags: { team: 'a' } })
    assert.deepEqual((await app.admin.get(`/projects/${project.id}/tags`)).body, { team: 'a' })
    await call('replace-project-tags', { tags: {} })
  })

  it('reports invalid arguments to the model', async () => {
    const unknown = await call('create-actor', { name: 'A', colour: 'red' })
    assert.equal(unknown.isError, true)
    assert.equal(unknown.structuredContent.error.code, 'VALIDATION_FAILED')
    assert.equal(unknown.structuredContent.error.meta.problems[0].path, 'colour')
    assert.deepEqual(JSON.parse(unknown.content[0].text), unknown.structuredContent)
    const missing = await call('get-actor', {})
    assert.equal(missing.structuredContent.error.meta.problems[0].path, 'actor_id')
    const gone = await call('get-actor', { actor_id: 'actor_nope' })
    const { error } = (await project.key.get('/actors/actor_nope')).body
    assert.deepEqual(gone.structuredContent, { error })
    const stream = await call('create-agent-generation', { agent_id: 'x', stream: true })
    assert.equal(stream.structuredContent.error.meta.problems[0].path, 'stream')
  })

  it('leaves one audit entry of a call, named by its surface, also of a refused one', async () => {
    const { id, key } = await app.projectWith(['actors:CreateActor'])
    const ask = tools(app.url, key.token)
    assert.equal((await ask('create-actor', { name: 'A' })).structuredContent.name, 'A')
    assert.equal((await ask('create-file', { filename: 'a' })).structuredContent.error.code, 'FORBIDDEN')
    const entries = (await app.admin.get(`/audit-log?project_id=${id}`)).body.data
    const mine = entries.filter(({ detail }: any) => detail?.surface === 'mcp')
    assert.deepEqual(mine.map(({ action, status }: any) => `${action} ${status}`).sort(), [
      'actors:CreateActor 201',
      'files:CreateFile 403',
    ])
  })

  it('repeats nothing under an idempotency key', async () => {
    const ask = { meta: { idempotency_key: 'once' } }
    const first = (await call('create-actor', { name: 'Once' }, ask)).structuredContent
    const second = (await call('create-actor', { name: 'Once' }, ask)).structuredContent
    assert.equal(second.id, first.id)
    const rest = await project.key.post('/actors', { name: 'Once' }, { 'idempotency-key': 'once' })
    assert.equal(rest.body.id, first.id)
    const without = { meta: { idempotency_key: null } as never }
    const [one, other] = [
      await call('create-actor', { name: 'Two' }, without),
      await call('create-actor', { name: 'Two' }, without),
    ]
    assert.notEqual(one.structuredContent.id, other.structuredContent.id)
  })

  it('counts a call of an unscoped key in the project of the call, and answers a refusal as its result, or over HTTP', async () => {
    const { id } = await app.project()
    const key = (await app.admin.post('/project-keys', {})).body
    const quota = await app.admin.post('/quotas', {
      project_id: id,
      scope: 'project',
      metric: 'requests',
      window: 'rolling_24h',
      limit: 1,
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    const ask = tools(app.url, key.secret)
    await wire(app.url, key.secret)('tools/list')
    assert.equal((await ask('list-actors', { project_id: id })).isError, undefined)
    assert.equal((await ask('list-actors', { project_id: id })).structuredContent.error.code, 'QUOTA_EXCEEDED')
    const listed = await wire(app.url, key.secret)('resources/list', {}, { query: `?project_id=${id}` })
    assert.deepEqual([listed.status, listed.body.error.code], [429, 'QUOTA_EXCEEDED'])

    // Made of several calls: one of files and one of documents.
    await app.admin.patch(`/quotas/${quota.body.id}`, { limit: 100 })
    const used = async () => (await app.admin.get(`/quotas/${quota.body.id}/usage`)).body.observed_value
    const before = await used()
    const { body } = await wire(app.url, key.secret)('resources/list', {}, { query: `?project_id=${id}` })
    assert.deepEqual(body.result.resources, [])
    assert.equal((await used()) - before, 1)
  })

  it('truncates large results and reports it', async () => {
    const text = 'x'.repeat(1_200_000)
    const made = (
      await call('upload-file-base64', {
        filename: 'large.txt',
        content: Buffer.from(text).toString('base64'),
      })
    ).structuredContent
    assert.equal(made.path, '/large.txt')
    const { content, structuredContent } = await call('download-file-base64', { file_id: made.id })
    assert.equal(content[0].text.length, 1024 * 1024)
    assert.match(content[1].text, /limit and offset/)
    assert.equal(structuredContent, undefined)
    const small = (await call('upload-file-base64', { filename: 's.txt', content: 'aGk=' })).structuredContent
    assert.equal((await call('download-file-base64', { file_id: small.id })).structuredContent.content, 'aGk=')
  })

  it('refuses hostile arguments quickly', async () => {
    const post = (args: string) =>
      project.key.post(
        '//mcp',
        `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create-actor","arguments":${args}}}`,
      )
    assert.equal((await post(`{"name":"${'x'.repeat(11_000_000)}"}`)).status, 413)
    assert.equal((await post(`{"name":${'['.repeat(65)}${']'.repeat(65)}}`)).status, 400)
    assert.equal((await post(`{"name":[${'0,'.repeat(100_000)}0]}`)).status, 400)
    const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, index) => [`p${index}`, 1]))
    const refused = (await post(JSON.stringify(many))).body.result
    assert.equal(refused.structuredContent.error.code, 'VALIDATION_FAILED')
    assert.equal((await call('list-actors')).isError, undefined)
  })
})

/** Tools that every credential may call. */
const ANYBODY = [
  'get-me',
  'get-user',
  'list-authored-definitions',
  'list-event-registry',
  'list-own-permissions',
  'list-permissions',
  'list-prices',
  'list-projects',
  'list-user-policies',
  'resolve-approvals',
  'revoke-own-tokens',
  'simulate-policies',
  'validate-formation',
  'validate-orchestration',
  'validate-playbook',
]

/** Operations that are no tools. */
const LEFT_OUT: string[] = [
  'bootstrap-user',
  'call-orchestration-run-hook',
  'call-trigger-hook',
  'change-own-password',
  'complete-ingestion-callback',
  'create-actor-token',
  'create-api-key',
  'create-generation-stream-ticket',
  'create-saved-view',
  'create-session-note',
  'create-session-stream-ticket',
  'create-token-for-actor',
  'create-user-identity',
  'delete-api-key',
  'delete-oauth-client',
  'delete-queue-message',
  'delete-saved-view',
  'delete-session-note',
  'delete-user-identity',
  'download-file',
  'export-activity',
  'export-audit-entries',
  'export-conversation',
  'export-dataset-items',
  'export-memory-store',
  'export-usage-events',
  'get-api-key',
  'get-api-key-usage',
  'get-oauth-consent-info',
  'get-saved-view',
  'get-session-note',
  'grant-oauth-consent',
  'import-dataset-file',
  'list-api-keys',
  'list-cells',
  'list-feedback',
  'list-oauth-clients',
  'list-oauth-grants',
  'list-queue-messages',
  'list-saved-views',
  'list-session-notes',
  'list-system-settings',
  'list-user-identities',
  'login-user',
  'narrow-oauth-grant',
  'replace-api-key',
  'replace-file-content',
  'replay-queue-message',
  'reset-user-password',
  'revoke-oauth-grant',
  'rotate-api-key',
  'signal-session-typing',
  'stream-activity',
  'stream-formation-operation',
  'stream-generation',
  'stream-orchestration-run',
  'stream-session',
  'update-api-key',
  'update-saved-view',
  'update-session-note',
  'upload-file',
  'upload-file-with-token',
]

const sample = (schema: any): unknown =>
  schema.type === 'array' ? [] : schema.type === 'object' ? {} : schema.type === 'integer' ? 1 : 'x'
