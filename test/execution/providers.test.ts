import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'

describe('AI providers', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  const key = forSuite(() => project.key)

  const create = (fields: Record<string, unknown> = {}, as = key): Promise<Reply> =>
    as.post('/ai-providers', {
      name: 'main',
      provider: 'custom',
      default_model: 'model-1',
      base_url: 'https://models.example.com/v1',
      ...fields,
    })

  const made = async (fields: Record<string, unknown> = {}) => {
    const reply = await create(fields)
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return reply.body
  }

  const secret = async (value = 'a secret value', as = key): Promise<string> =>
    (await as.post('/secrets', { name: 'credential', value })).body.id

  const events = (id: string) => storedEvents(app.pool, { resource: id })

  const refusedAt = (reply: Reply, path: string) => {
    assert.equal(reply.status, 400, JSON.stringify(reply.body))
    assert.equal(reply.body.error.code, 'VALIDATION_FAILED')
    assert.ok(
      reply.body.error.meta.problems.some((problem: { path: string }) => problem.path === path),
      JSON.stringify(reply.body.error),
    )
  }

  it('are created, read and listed with every field', async () => {
    const secret_id = await secret()
    const record = await made({ name: '  primary  ', secret_id, config: { other: [1], headers: { 'X-Title': 'b' } } })
    assert.match(record.id, /^aip_[0-9a-z]{26}$/)
    assert.deepEqual(record, {
      id: record.id,
      project_id: project.id,
      name: 'primary',
      provider: 'custom',
      default_model: 'model-1',
      secret_id,
      base_url: 'https://models.example.com/v1',
      config: { other: [1], headers: { 'X-Title': 'b' } },
      created_at: record.created_at,
      updated_at: record.created_at,
    })
    const read = await key.get(`/ai-providers/${record.id}`)
    assert.deepEqual(read.body, record)
    const bare = await made({ provider: 'openai', base_url: undefined })
    assert.deepEqual([bare.secret_id, bare.base_url, bare.config], [null, null, null])
    assert.equal((await made()).name, 'main', 'a name is not unique')
  })

  it('are listed by name, type and secret', async () => {
    const other = (await app.project()).key
    const secret_id = await secret('v', other)
    await create({ name: 'Alpha', provider: 'openai', base_url: null }, other)
    await create({ name: 'alphabet', provider: 'groq', base_url: null, secret_id }, other)
    await create({ name: 'Beta', provider: 'xai', base_url: null }, other)
    const names = async (query: string) =>
      (await other.get(`/ai-providers${query}`)).body.data.map((item: { name: string }) => item.name)
    assert.deepEqual(await names(''), ['Beta', 'alphabet', 'Alpha'])
    assert.deepEqual(await names('?name=ALPHA'), ['alphabet', 'Alpha'])
    assert.deepEqual(await names('?provider=openai&provider=xai'), ['Beta', 'Alpha'])
    assert.deepEqual(await names(`?secret_id=${secret_id}`), ['alphabet'])
    assert.equal((await other.get('/ai-providers?provider=foo')).status, 400)
    assert.equal((await other.get('/ai-providers?limit=2')).body.total, 3)
  })

  it('are refused with a field that is wrong, naming it', async () => {
    refusedAt(await create({ provider: 'foo' }), 'provider')
    refusedAt(await create({ base_url: null }), 'base_url')
    refusedAt(await create({ provider: 'gateway', base_url: undefined }), 'base_url')
    for (const base_url of [
      'http://u:p@h/',
      'ftp://h/',
      'h/v1',
      'https://h/#x',
      'https://h/?a=b',
      'javascript:alert(1)',
    ])
      refusedAt(await create({ base_url }), 'base_url')
    refusedAt(await create({ provider: 'bedrock', config: { api_key: 'k' } }), 'base_url')
    refusedAt(await create({ name: ' ' }), 'name')
    refusedAt(await create({ name: 'x'.repeat(256) }), 'name')
    refusedAt(await create({ default_model: '' }), 'default_model')
    refusedAt(await create({ default_model: undefined }), 'default_model')
    refusedAt(await create({ unknown: 1 }), 'unknown')
    refusedAt(await create({ config: [] }), 'config')
    refusedAt(await create({ config: { large: 'x'.repeat(70_000) } }), 'config')
  })

  it('are refused with a setting that is wrong, naming it', async () => {
    const cloud = { base_url: null, config: {} }
    const location = { api_key: 'k', location: 'evil.example.com/x' }
    refusedAt(await create({ ...cloud, provider: 'vertex', config: location }), 'config.location')
    refusedAt(
      await create({ ...cloud, provider: 'vertex', config: { api_key: 'k', project: 'a/b' } }),
      'config.project',
    )
    refusedAt(await create({ ...cloud, provider: 'bedrock', config: { api_key: 'k', region: 'x.y' } }), 'config.region')
    const resource = { resourceName: '-edge' }
    refusedAt(await create({ ...cloud, provider: 'azure', config: resource }), 'config.resourceName')
    refusedAt(await create({ provider: 'openai', config: { api: 'realtime' } }), 'config.api')
    refusedAt(await create({ config: { structured_outputs: 'yes' } }), 'config.structured_outputs')
    refusedAt(await create({ config: { headers: ['a'] } }), 'config.headers')
    refusedAt(await create({ config: { headers: { 'X-A': 1 } } }), 'config.headers.X-A')
    refusedAt(await create({ config: { headers: { 'X A': 'b' } } }), 'config.headers.X A')
    refusedAt(await create({ config: { headers: { 'X-A': 'a\r\nb' } } }), 'config.headers.X-A')
    for (const name of ['Host', 'content-length', 'Transfer-Encoding'])
      refusedAt(await create({ config: { headers: { [name]: 'x' } } }), `config.headers.${name}`)
    const headers = { api_key: 'k', headers: { 'X-A': 'b' } }
    refusedAt(await create({ ...cloud, provider: 'bedrock', config: headers }), 'config.headers')
  })

  it('may name only secrets of their project, also in header tokens', async () => {
    const foreign = await secret('theirs', (await app.project()).key)
    for (const fields of [
      { secret_id: foreign },
      { secret_id: 'sec_00000000000000000000000000' },
      { config: { headers: { 'X-A': `{{secret:${foreign}}}` } } },
    ]) {
      const refused = await create(fields)
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.code, 'SECRET_NOT_FOUND')
    }
    const { id } = await made()
    assert.equal((await key.patch(`/ai-providers/${id}`, { secret_id: foreign })).body.error.code, 'SECRET_NOT_FOUND')
    const token = await create({ config: { headers: { 'X-A': '{{context:user}}' } } })
    assert.equal(token.body.error.code, 'INVALID_TEMPLATE_TOKEN')
  })

  describe('and the right to use a secret', () => {
    const token = (id: string) => ({ headers: { 'X-Key': `{{secret:${id}}}` } })
    /** A user who may write providers of the project, and use the secrets named. */
    const writer = (...secrets: string[]) => {
      const statement = [
        { effect: 'Allow', action: ['ai-providers:*'], resource: [`srn:${project.id}:ai_provider:*`] },
        ...(secrets.length > 0
          ? [
              {
                effect: 'Allow',
                action: ['secrets:UseSecret'],
                resource: secrets.map(id => `srn:${project.id}:secret:${id}`),
              },
            ]
          : []),
      ]
      return app.user(undefined, [{ statement }])
    }
    const createAs = (as: Client, fields: Record<string, unknown>) => create({ project_id: project.id, ...fields }, as)
    const refused = (reply: Reply) => {
      assert.equal(reply.status, 403, JSON.stringify(reply.body))
      assert.deepEqual(reply.body.error.meta, { action: 'secrets:UseSecret' })
    }

    it('is needed to name a secret, in `secret_id` and in a header, at a create and at a change', async () => {
      const [mine, other] = [await secret(), await secret()]
      const user = await writer(mine)
      for (const fields of [{ secret_id: other }, { config: token(other) }, { secret_id: mine, config: token(other) }])
        refused(await createAs(user, fields))
      for (const fields of [{}, { secret_id: mine }, { config: token(mine) }])
        assert.equal((await createAs(user, fields)).status, 201)
      const { body } = await createAs(user, { secret_id: mine })
      for (const fields of [{ secret_id: other }, { config: token(other) }]) {
        refused(await user.patch(`/ai-providers/${body.id}`, fields))
        assert.deepEqual((await user.get(`/ai-providers/${body.id}`)).body, body)
      }
      assert.equal((await user.patch(`/ai-providers/${body.id}`, { config: token(mine) })).status, 200)
    })

    it('is needed to change where a named secret is sent, and for nothing else', async () => {
      const id = await secret()
      const user = await writer()
      const azure = { provider: 'azure', base_url: null, config: { resource_name: 'ours' } }
      for (const [fields, moves] of [
        [{ secret_id: id }, [{ base_url: 'https://evil.example.com' }, { provider: 'gateway' }]],
        [{ config: token(id) }, [{ base_url: 'https://evil.example.com' }, { provider: 'openai', base_url: null }]],
        [{ ...azure, secret_id: id }, [{ config: { resourceName: 'theirs' } }, { config: null }]],
        [
          { provider: 'bedrock', base_url: null, secret_id: id },
          [{ config: { region: 'eu-west-1' } }, { provider: 'vertex' }],
        ],
      ] as const) {
        const record = await made(fields)
        const change = (body: object) => user.patch(`/ai-providers/${record.id}`, body)
        for (const move of moves) refused(await change(move))
        assert.deepEqual((await key.get(`/ai-providers/${record.id}`)).body, record)
        const same = { base_url: record.base_url && `${record.base_url}/`, config: { ...record.config, other: 1 } }
        for (const body of [{ name: 'renamed' }, { default_model: 'model-2' }, same])
          assert.equal((await change(body)).status, 200)
        assert.equal((await key.patch(`/ai-providers/${record.id}`, moves[0])).status, 200)
      }
    })

    it('is not needed to move a provider that parts with its secrets', async () => {
      const user = await writer()
      const { id } = await made({ secret_id: await secret(), config: token(await secret()) })
      const parted = { secret_id: null, config: null, base_url: 'https://elsewhere.example.com' }
      assert.equal((await user.patch(`/ai-providers/${id}`, parted)).status, 200)
    })

    it('is required before a secret is read, and noted in the audit entry', async () => {
      const [id, nobodys] = [await secret(), 'sec_00000000000000000000000000']
      const user = await writer(id)
      refused(await createAs(user, { secret_id: nobodys }))
      const provider = (await createAs(user, { secret_id: id })).body.id
      const noted = async (query: string) =>
        (await app.admin.get(`/audit-log?project_id=${project.id}&principal_id=${user.id}&${query}`)).body.data[0]
          .detail.additional_checks
      const check = (name: string, allowed: boolean) => [
        { action: 'secrets:UseSecret', resource: `srn:${project.id}:secret:${name}`, allowed },
      ]
      assert.deepEqual(await noted('status=403'), check(nobodys, false))
      assert.deepEqual(await noted(`resource_public_id=${provider}`), check(id, true))
    })

    it('is an action that policies may name and keys may be narrowed by', async () => {
      const document = { statement: [{ effect: 'Allow', action: ['ai-providers:*'] }] }
      const policy = (await app.admin.post('/policies', { document })).body.id
      const narrowed = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy] })
      const id = await secret()
      refused(await createAs(app.as(narrowed.body.secret), { secret_id: id }))
      const actions = (await app.admin.get('/users/me/permissions?limit=100')).body
      const entries: { action: string }[] = []
      for (let offset = 0; offset < actions.total; offset += 100)
        entries.push(...(await app.admin.get(`/users/me/permissions?limit=100&offset=${offset}`)).body.data)
      assert.ok(entries.some(({ action }) => action === 'secrets:UseSecret'))
    })
  })

  it('keep no credential of their config that would go to another address', async () => {
    const credential = { headers: { Authorization: 'Basic cGFzc3dvcmQ=', 'X-Title': 'shown' } }
    const { id, config, base_url } = await made({ config: credential })
    const change = (body: object) => key.patch(`/ai-providers/${id}`, body)
    const elsewhere = { base_url: 'https://evil.example.com' }
    refusedAt(await change(elsewhere), 'config.headers.Authorization')
    refusedAt(await change({ ...elsewhere, config }), 'config.headers.Authorization')
    refusedAt(await change({ provider: 'openai', base_url: null }), 'config.headers.Authorization')
    assert.equal((await change({ base_url: `${base_url}/`, config, name: 'same place' })).status, 200)
    assert.equal((await change({ ...elsewhere, config: credential })).status, 200)
    assert.equal((await change({ base_url, config: { headers: { 'X-Title': 'b' } } })).status, 200)
  })

  it('of bedrock and vertex need a credential while the deployment lends none', async () => {
    for (const provider of ['bedrock', 'vertex']) {
      const refused = await create({ provider, base_url: null })
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.code, 'AI_PROVIDER_MISCONFIGURED')
      assert.equal(refused.body.error.meta.reason, 'no_credential')
      const { id } = await made({ provider, base_url: null, secret_id: await secret() })
      const cleared = await key.patch(`/ai-providers/${id}`, { secret_id: null })
      assert.equal(cleared.body.error.code, 'AI_PROVIDER_MISCONFIGURED')
      const masked = await create({ provider, base_url: null, config: { api_key: '***' } })
      assert.equal(masked.body.error.code, 'AI_PROVIDER_MISCONFIGURED')
    }
  })

  it('of bedrock need no credential where the deployment lends its own', async () => {
    const lending = await startApp({ env: { PROVIDER_AMBIENT_CREDENTIALS: 'true' } })
    try {
      const { key: own } = await lending.project()
      const reply = await create({ provider: 'bedrock', base_url: null }, own)
      assert.equal(reply.status, 201)
    } finally {
      await lending.close()
    }
  })

  it('never show credential values of their config, and keep them when the mask is sent back', async () => {
    const config = { apiKey: 'AKIA-in-the-config', region: 'eu-west-1' }
    const record = await made({ provider: 'bedrock', base_url: null, config })
    const shown = { apiKey: '***', region: 'eu-west-1' }
    assert.deepEqual(record.config, shown)
    const kept = await key.patch(`/ai-providers/${record.id}`, { config: { ...shown, region: 'us-west-2' } })
    assert.deepEqual(kept.body.config, { apiKey: '***', region: 'us-west-2' })
    const dropped = await key.patch(`/ai-providers/${record.id}`, { config: { region: 'us-west-2' } })
    assert.equal(dropped.body.error.code, 'AI_PROVIDER_MISCONFIGURED')
    const header = await made({
      config: { headers: { Authorization: 'Basic cGFzc3dvcmQ=', 'X-Gate': 'in-the-config', 'X-Title': 'shown' } },
    })
    assert.deepEqual(header.config.headers, { Authorization: '***', 'X-Gate': '***', 'X-Title': 'shown' })
    const stored = await app.pool.any(sql.unsafe`select t::text from ai_providers t`)
    const said = [...(await events(record.id)), ...(await events(header.id)), ...stored]
    assert.equal(/in-the-config|cGFzc3dvcmQ/.test(JSON.stringify(said)), false)
  })

  it('change field by field, with null clearing what may be empty', async () => {
    const record = await made({ secret_id: await secret(), config: { a: 1 } })
    const cleared = await key.patch(`/ai-providers/${record.id}`, { secret_id: null, config: null, name: 'renamed' })
    assert.equal(cleared.status, 200)
    assert.deepEqual(cleared.body, {
      ...record,
      name: 'renamed',
      secret_id: null,
      config: null,
      updated_at: cleared.body.updated_at,
    })
    refusedAt(await key.patch(`/ai-providers/${record.id}`, { base_url: null }), 'base_url')
    refusedAt(await key.patch(`/ai-providers/${record.id}`, { provider: 'vertex' }), 'base_url')
    refusedAt(await key.patch(`/ai-providers/${record.id}`, { name: null }), 'name')
    refusedAt(await key.patch(`/ai-providers/${record.id}`, { project_id: project.id }), 'project_id')
    const slash = await key.patch(`/ai-providers/${record.id}`, { base_url: 'https://h.example.com/v1/' })
    assert.equal(slash.body.base_url, 'https://h.example.com/v1')
  })

  it('emit an event with the record for every change', async () => {
    const record = await made()
    const changed = (await key.patch(`/ai-providers/${record.id}`, { name: 'second' })).body
    await key.delete(`/ai-providers/${record.id}`)
    const said = await events(record.id)
    assert.deepEqual(
      said.map(({ name, data }) => [name, data]),
      [
        ['ai_providers.created', record],
        ['ai_providers.updated', changed],
        ['ai_providers.deleted', changed],
      ],
    )
  })

  it('answer 404 to other projects and 403 without the permission', async () => {
    const { id } = await made()
    const stranger = (await app.project()).key
    assert.equal((await stranger.get(`/ai-providers/${id}`)).status, 404)
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['ai-providers:GetAiProvider'], resource: ['*'] }] },
    ])
    assert.equal((await reader.get(`/ai-providers/${id}`)).status, 200)
    assert.equal((await reader.delete(`/ai-providers/${id}`)).status, 403)
    assert.equal((await reader.get(`/ai-providers/${id}/models`)).status, 403)
  })

  it('are not deleted while an agent names them, not even by force', async () => {
    const { id } = await made()
    const agent = (await key.post('/agents', { ai_provider_id: id })).body
    for (const query of ['', '?force=true']) {
      const refused = await key.delete(`/ai-providers/${id}${query}`)
      assert.equal(refused.status, 409)
      assert.equal(refused.body.error.code, 'AI_PROVIDER_HAS_DEPENDENTS')
      assert.deepEqual(refused.body.error.meta, {
        counts: { agents: 1 },
        sample_ids: { agents: [agent.id] },
        forcible: false,
      })
    }
    assert.equal((await key.delete(`/agents/${agent.id}`)).status, 204)
    assert.equal((await key.delete(`/ai-providers/${id}`)).status, 204)
    assert.equal((await key.get(`/ai-providers/${id}`)).status, 404)
  })

  it('are deleted with their secret when it is deleted by force, unless an agent names them', async () => {
    const secret_id = await secret()
    const { id } = await made({ secret_id })
    const agent = (await key.post('/agents', { ai_provider_id: id })).body
    const live = await key.delete(`/secrets/${secret_id}?force=true`)
    assert.equal(live.status, 409)
    assert.equal(live.body.error.code, 'SECRET_HAS_DEPENDENTS')
    assert.equal(live.body.error.meta.forcible, false)
    assert.equal(live.body.error.meta.counts.agents, 1)
    await key.delete(`/agents/${agent.id}`)
    assert.equal((await key.delete(`/secrets/${secret_id}`)).body.error.meta.forcible, true)
    assert.equal((await key.delete(`/secrets/${secret_id}?force=true`)).status, 204)
    assert.equal((await key.get(`/ai-providers/${id}`)).status, 404)
    assert.deepEqual(
      (await events(id)).map(event => event.name),
      ['ai_providers.created', 'ai_providers.deleted'],
    )
  })

  it('never leave an agent dangling when a delete races its creation', async () => {
    for (let round = 0; round < 40; round++) {
      const { id } = await made()
      const [gone, agent] = await Promise.all(
        round % 2 === 0
          ? [key.delete(`/ai-providers/${id}`), key.post('/agents', { ai_provider_id: id })]
          : await (async () => {
              const posted = key.post('/agents', { ai_provider_id: id })
              await new Promise(resolve => setTimeout(resolve, round / 10))
              return [key.delete(`/ai-providers/${id}`), posted]
            })(),
      )
      const outcome = `${gone.status} ${agent.status} ${agent.body?.error?.code ?? ''}`.trim()
      assert.ok(['204 400 AI_PROVIDER_NOT_FOUND', '409 201'].includes(outcome), outcome)
    }
    const dangling = await app.pool.any(sql.unsafe`
      select 1 from agents a left join ai_providers p on p.id = a.ai_provider_id where p.id is null`)
    assert.equal(dangling.length, 0)
  })

  it('are deleted with their project', async () => {
    const doomed = await app.project()
    const { body } = await create({ secret_id: await secret('v', doomed.key) }, doomed.key)
    await doomed.key.post('/agents', { ai_provider_id: body.id })
    const refused = await app.admin.delete(`/projects/${doomed.id}`)
    assert.equal(refused.body.error.meta.counts.ai_providers, 1)
    assert.equal(refused.body.error.meta.counts.agents, 1)
    assert.equal((await app.admin.delete(`/projects/${doomed.id}?force=true`)).status, 204)
  })

  it('keep their credentials through a change of the encryption key', async () => {
    const { id } = await made({ provider: 'bedrock', base_url: null, config: { api_key: 'ABSK-config-key' } })
    const { sealedColumns } = await import('#core/db/sealed.ts')
    assert.ok(sealedColumns.all().some(column => column.table === 'ai_providers'))
    const sealed = (await app.pool.oneFirst(
      sql.unsafe`select sealed_credentials from ai_providers where id = ${id}`,
    )) as string
    const opened = app.services.secrets.open(sealed, { kind: 'ai_provider', id, project_id: project.id })
    assert.deepEqual(opened, { ok: true, value: '{"config":{"api_key":"ABSK-config-key"},"headers":{}}' })
  })
})
