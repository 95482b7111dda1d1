import { strict as assert } from 'node:assert'
import { AppError } from '#core/base/errors.ts'
import { sealedColumns } from '#core/db/sealed.ts'
import { createSecretBox } from '#core/secrets/secretbox.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'
import { reencryptSecrets, verifySecrets } from '#identity/secrets/reencrypt.ts'
import { checkTokens, openSecret, resolveTokens } from '#identity/secrets/resolve.ts'
import { dropReplacedValues } from '#identity/secrets/store.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const allow = (action: string, resource: string) => ({
  statement: [{ effect: 'Allow', action: [action], resource: [resource] }],
})

describe('secrets', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  const store = async (value: string, of = project) =>
    (await of.key.post('/secrets', { name: 'stored', value })).body.id as string
  const reading = (id: string, of = project) => openSecret(app.pool, app.servicesOf(of.id), of.id, id)
  const failsWith = (code: string, id: string) => (error: AppError) =>
    error instanceof AppError && error.code === code && error.meta?.secret_id === id

  describe('record', () => {
    it('is created without showing its value', async () => {
      const made = await project.key.post('/secrets', { name: ' openai ', value: 'sk-live-1' })
      assert.equal(made.status, 201)
      const { id, created_at, updated_at, value_updated_at, ...rest } = made.body
      assert.match(id, /^sec_[0-9a-z]{26}$/)
      assert.ok(created_at && updated_at && value_updated_at)
      assert.deepEqual(rest, {
        project_id: project.id,
        name: 'openai',
        has_value: true,
        source: null,
        expires_at: null,
      })
      assert.deepEqual((await project.key.get(`/secrets/${id}`)).body, made.body)
    })

    it('refuses bodies without name or value, unknown fields, and values out of bounds', async () => {
      for (const body of [
        {},
        { name: 'x' },
        { value: 'x' },
        { name: '', value: 'x' },
        { name: 'x'.repeat(256), value: 'x' },
        { name: 'x', value: '' },
        { name: 'x', value: null },
        { name: 'x', value: 1 },
        { name: 'x', value: 'é'.repeat(32_769) },
        { name: 'x', value: 'x', expires_at: 'soon' },
        { name: 'x', value: 'x', source: { type: 'vault', path: 'x' } },
        { name: 'x', value: 'x', has_value: true },
      ])
        assert.equal((await project.key.post('/secrets', body)).status, 400, JSON.stringify(body).slice(0, 60))
      assert.equal((await project.key.post('/secrets', { name: 'x', value: 'é'.repeat(32_768) })).status, 201)
    })

    it('needs a project, and the one the key is bound to', async () => {
      assert.equal((await app.admin.post('/secrets', { name: 'x', value: 'v' })).status, 400)
      assert.equal((await app.admin.post('/secrets', { project_id: project.id, name: 'x', value: 'v' })).status, 201)
      const other = await app.project()
      const refused = await project.key.post('/secrets', { project_id: other.id, name: 'x', value: 'v' })
      assert.deepEqual([refused.status, refused.body.error.code], [403, 'API_KEY_PROJECT_SCOPE'])
    })

    it('is listed by project and name, newest first', async () => {
      const p = await app.project()
      for (const name of ['Alpha', 'beta', 'ALPHABET']) await p.key.post('/secrets', { name, value: 'v' })
      const names = (reply: { body: { data: { name: string }[] } }) => reply.body.data.map(item => item.name)
      assert.deepEqual(names(await p.key.get('/secrets')), ['ALPHABET', 'beta', 'Alpha'])
      assert.deepEqual(names(await app.admin.get(`/secrets?project_id=${p.id}&name=alpha`)), ['ALPHABET', 'Alpha'])
      assert.deepEqual(names(await p.key.get('/secrets?limit=1&offset=1')), ['beta'])
    })

    it('follows policies: one id, its project, others', async () => {
      const [a, b] = [await store('v'), await store('v')]
      const other = await store('v', await app.project())
      const reader = await app.user(undefined, [allow('secrets:GetSecret', `srn:${project.id}:secret:${a}`)])
      assert.equal((await reader.get(`/secrets/${a}`)).status, 200)
      assert.equal((await reader.get(`/secrets/${b}`)).status, 403)
      assert.equal((await reader.get(`/secrets/${other}`)).status, 404)
      assert.equal((await reader.post('/secrets', { project_id: project.id, nope: 1 })).status, 403)
    })

    it('is renamed and gets a new value with PATCH and PUT', async () => {
      const id = await store('first value')
      const renamed = await project.key.patch(`/secrets/${id}`, { name: 'renamed' })
      assert.equal(renamed.body.name, 'renamed')
      assert.equal(await reading(id), 'first value')
      const changed = await project.key.put(`/secrets/${id}`, { value: 'second value' })
      assert.equal(changed.status, 200)
      assert.ok(changed.body.value_updated_at >= renamed.body.value_updated_at)
      assert.equal(await reading(id), 'second value')
      for (const body of [{ value: '' }, { value: null }, { name: null }, { project_id: project.id }])
        assert.equal((await project.key.patch(`/secrets/${id}`, body)).status, 400, JSON.stringify(body))
    })

    it('is unchanged by a PATCH without fields, without an event', async () => {
      const { id } = (await project.key.post('/secrets', { name: 'still', value: 'v' })).body
      const { body } = await project.key.patch(`/secrets/${id}`, { name: 'moved' })
      for (const method of ['patch', 'put'] as const) {
        const reply = await project.key[method](`/secrets/${id}`, {})
        assert.deepEqual([reply.status, reply.body], [200, body])
      }
      assert.equal((await app.rows('select 1 from events where resource_id = $1', [id])).length, 2)
    })

    it('keeps one of several values written concurrently', async () => {
      const id = await store('v')
      const values = Array.from({ length: 8 }, (_, index) => `value ${index}`)
      const replies = await Promise.all(values.map(value => project.key.patch(`/secrets/${id}`, { value })))
      assert.deepEqual([...new Set(replies.map(reply => reply.status))], [200])
      assert.ok(values.includes(await reading(id)))
    })

    it('is deleted with its value', async () => {
      const id = await store('v')
      assert.equal((await project.key.delete(`/secrets/${id}`)).status, 204)
      assert.equal((await project.key.get(`/secrets/${id}`)).status, 404)
      assert.equal((await project.key.delete(`/secrets/${id}`)).status, 404)
      assert.equal((await project.key.delete(`/secrets/${await store('v')}?force=yes`)).status, 400)
    })
  })

  describe('value', () => {
    it('is in no response, event, audit entry, log line or stored row', async () => {
      const values = ['the-first-hidden-value', 'the-second-hidden-value']
      const replies = []
      const made = await project.key.post(
        '/secrets',
        { name: 'hidden', value: values[0] },
        { 'idempotency-key': 'hide-1' },
      )
      replies.push(made, await project.key.patch(`/secrets/${made.body.id}`, { value: values[1] }))
      replies.push(await project.key.get(`/secrets/${made.body.id}`), await project.key.get('/secrets'))
      replies.push(await project.key.patch(`/secrets/${made.body.id}`, { value: values[0], nope: 1 }))
      replies.push(await project.key.post(`/secrets/${made.body.id}/rollback`))
      replies.push(await project.key.delete(`/secrets/${made.body.id}`))
      const tables = await Promise.all(
        ['events', 'audit_entries', 'secrets', 'idempotency_keys'].map(table => app.rows(`select * from ${table}`)),
      )
      const traces = JSON.stringify([replies.map(reply => reply.body), tables, app.logs])
      for (const value of values) assert.ok(!traces.includes(value), value)
    })

    it('is announced as the record GET shows', async () => {
      const made = (await project.key.post('/secrets', { name: 'told', value: 'v' })).body
      const changed = (await project.key.patch(`/secrets/${made.id}`, { name: 'told again' })).body
      await project.key.delete(`/secrets/${made.id}`)
      const events = await storedEvents(app.pool, { resource: made.id })
      assert.deepEqual(
        events.map(({ name, data }) => [name, data]),
        [
          ['secrets.created', made],
          ['secrets.updated', changed],
          ['secrets.deleted', changed],
        ],
      )
    })

    it('does not open in another row', async () => {
      const [a, b] = [await store('value of a'), await store('value of b')]
      await app.rows(
        'update secrets set sealed_value = (select sealed_value from secrets where id = $1) where id = $2 returning 1',
        [a, b],
      )
      assert.equal(await reading(a), 'value of a')
      await assert.rejects(reading(b), failsWith('SECRET_NOT_DECRYPTABLE', b))
    })

    it('can be rolled back for a day', async () => {
      const id = await store('before')
      const none = await project.key.post(`/secrets/${id}/rollback`)
      assert.deepEqual([none.status, none.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
      await project.key.patch(`/secrets/${id}`, { value: 'after' })
      assert.equal((await project.key.post(`/secrets/${id}/rollback`)).status, 200)
      assert.equal(await reading(id), 'before')
      assert.equal((await project.key.post(`/secrets/${id}/rollback`)).status, 200)
      assert.equal(await reading(id), 'after')
      const [{ hours }] = await app.rows(
        'select extract(epoch from previous_until - now()) / 3600 as hours from secrets where id = $1',
        [id],
      )
      assert.ok(hours > 23.9 && hours <= 24)
      await app.rows(`update secrets set previous_until = now() - interval '1 second' where id = $1 returning 1`, [id])
      assert.equal((await project.key.post(`/secrets/${id}/rollback`)).status, 404)
      assert.ok((await dropReplacedValues(app.pool)) >= 1)
      const [kept] = await app.rows('select previous_sealed_value from secrets where id = $1', [id])
      assert.equal(kept.previous_sealed_value, null)
    })
  })

  describe('tokens', () => {
    it('are replaced in one pass with one query', async () => {
      const inner = await store('never read')
      const a = await store(`{{secret:${inner}}}$&`)
      const b = await store('second')
      const { texts, values } = await resolveTokens(app.pool, app.servicesOf(project.id), project.id, [
        `Bearer {{secret:${a}}}`,
        `{{secret:${b}}}-{{secret:${a}}}-{{secret:${b}}}`,
        'plain {{ secret:x }} {{other}}',
      ])
      assert.deepEqual(texts, [
        `Bearer {{secret:${inner}}}$&`,
        `second-{{secret:${inner}}}$&-second`,
        'plain {{ secret:x }} {{other}}',
      ])
      assert.deepEqual([...values].sort(), ['second', `{{secret:${inner}}}$&`].sort())
    })

    it('must name secrets of the project, when written and when used', async () => {
      const foreign = await store('v', await app.project())
      const own = await store('v')
      const check = (texts: string[], ids?: string[]) =>
        app.servicesOf(project.id).write(tx => checkTokens(tx, project.id, texts, ids))
      await check([`{{secret:${own}}}`, 'plain'], [own])
      await assert.rejects(check([`{{secret:${foreign}}}`]), failsWith('SECRET_NOT_FOUND', foreign))
      await assert.rejects(check([], ['sec_x']), failsWith('SECRET_NOT_FOUND', 'sec_x'))
      await assert.rejects(
        resolveTokens(app.pool, app.servicesOf(project.id), project.id, [`{{secret:${foreign}}}`]),
        failsWith('SECRET_NOT_FOUND', foreign),
      )
      await project.key.delete(`/secrets/${own}`)
      await assert.rejects(reading(own), failsWith('SECRET_NOT_FOUND', own))
    })

    it('are masked in texts, long values first, short ones not at all', () => {
      assert.equal(maskSecrets('key 12345678 and 1234567890', ['12345678', '1234567890']), 'key *** and ***')
      assert.equal(maskSecrets('short 1234567 $&', ['1234567', '$&$&$&$&']), 'short 1234567 $&')
      assert.equal(maskSecrets('a.+longvalue', ['.+longvalue']), 'a***')
    })
  })

  describe('delete of a referenced secret', () => {
    const provider = async (secret_id: string, more: object = {}) => {
      const body = { name: 'p', provider: 'openai', default_model: 'm', secret_id, ...more }
      return (await createdBy(project.key, '/ai-providers', body)).id as string
    }

    it('is refused while AI providers use it, and deletes them when forced', async () => {
      const id = await store('v')
      const providers = [await provider(id), await provider(id)]
      const refused = await project.key.delete(`/secrets/${id}`)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'SECRET_HAS_DEPENDENTS'])
      assert.deepEqual(refused.body.error.meta, {
        counts: { ai_providers: 2 },
        sample_ids: { ai_providers: providers.toReversed() },
        forcible: true,
      })
      assert.equal((await project.key.delete(`/secrets/${id}?force=true`)).status, 204)
      for (const one of providers) {
        assert.equal((await project.key.get(`/ai-providers/${one}`)).status, 404)
        const told = await app.rows(`select 1 from events where resource_id = $1 and name = 'ai_providers.deleted'`, [
          one,
        ])
        assert.equal(told.length, 1)
      }
    })

    it('is refused even when forced while an agent uses such a provider', async () => {
      const id = await store('v')
      const [used, free] = [await provider(id), await provider(id)]
      const agent = await project.key.post('/agents', { name: 'a', ai_provider_id: used })
      assert.equal(agent.status, 201, JSON.stringify(agent.body))
      for (const query of ['', '?force=true']) {
        const refused = await project.key.delete(`/secrets/${id}${query}`)
        assert.equal(refused.status, 409)
        assert.deepEqual(refused.body.error.meta, {
          counts: { ai_providers: 2, agents: 1 },
          sample_ids: { ai_providers: [free, used], agents: [agent.body.id] },
          forcible: false,
        })
      }
      for (const path of [`/secrets/${id}`, `/ai-providers/${used}`, `/ai-providers/${free}`])
        assert.equal((await project.key.get(path)).status, 200)
    })

    it('is refused while a header of an AI provider references it', async () => {
      const [id, other] = [await store('v'), await store('v')]
      const named = await provider(other, { config: { headers: { 'X-Team': `{{secret:${id}}}` } } })
      const list = await project.key.get(`/secrets/${id}/references`)
      assert.deepEqual(list.body.data, [{ type: 'ai_provider', id: named, field: 'config.headers' }])
      const refused = await project.key.delete(`/secrets/${id}`)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'SECRET_HAS_DEPENDENTS'])
      assert.deepEqual(refused.body.error.meta.sample_ids, { ai_providers: [named] })
      assert.equal((await project.key.patch(`/ai-providers/${named}`, { config: null })).status, 200)
      assert.equal((await project.key.delete(`/secrets/${id}`)).status, 204)
      assert.equal((await project.key.get(`/ai-providers/${named}`)).status, 200)
    })

    it('leaves no concurrently created provider', async () => {
      for (let round = 0; round < 4; round++) {
        const id = await store('v')
        const body = { name: 'p', provider: 'openai', default_model: 'm', secret_id: id }
        const creates = Array.from({ length: 10 }, () => project.key.post('/ai-providers', body))
        const removed = await project.key.delete(`/secrets/${id}?force=true`)
        assert.equal(removed.status, 204, JSON.stringify(removed.body))
        for (const reply of await Promise.all(creates))
          assert.ok(reply.status === 201 || reply.body.error.code === 'SECRET_NOT_FOUND', JSON.stringify(reply.body))
        assert.deepEqual(await app.rows('select id from ai_providers where secret_id = $1', [id]), [])
      }
    })

    it('can be checked in the list of references', async () => {
      const id = await store('v')
      assert.deepEqual((await project.key.get(`/secrets/${id}/references`)).body.data, [])
      const first = await provider(id)
      const second = await provider(id)
      const list = await project.key.get(`/secrets/${id}/references?limit=1`)
      assert.equal(list.body.total, 2)
      assert.deepEqual(list.body.data, [{ type: 'ai_provider', id: second, field: 'secret_id' }])
      const next = await project.key.get(`/secrets/${id}/references?limit=1&offset=1`)
      assert.deepEqual(next.body.data, [{ type: 'ai_provider', id: first, field: 'secret_id' }])
    })
  })

  describe('change of the encryption key', () => {
    const old = testEnvironment('').SECRETS_ENCRYPTION_KEY
    const next = 'ff'.repeat(32)

    it('keeps values readable through the previous key, and after reencryption without it', async () => {
      const id = await store('survives the change')
      await project.key.patch(`/secrets/${id}`, { value: 'survives too' })
      const minted = { 'idempotency-key': 'reencrypted-answer' }
      const key = (await app.admin.post('/project-keys', { name: 'kept' }, minted)).body.secret
      const open = (box: ReturnType<typeof createSecretBox>) =>
        openSecret(app.pool, { ...app.services, secrets: box }, project.id, id)
      const alone = createSecretBox({ key: next })
      const both = createSecretBox({ key: next, previous: [old] })
      await assert.rejects(open(alone), failsWith('SECRET_NOT_DECRYPTABLE', id))
      assert.equal(await open(both), 'survives too')

      const before = await verifySecrets({ pool: app.services.pool, secrets: both })
      assert.ok(before.some(count => count.column === 'sealed_value' && !count.current && count.count > 0))
      const broken = await store('will be broken')
      await app.rows(
        `update secrets set sealed_value = overlay(sealed_value placing 'AAAA' from length(sealed_value) - 3)
        where id = $1 returning 1`,
        [broken],
      )
      const progress: string[] = []
      const first = await reencryptSecrets({ ...app.services, secrets: both }, count => progress.push(count.column))
      const of = (column: string) => first.counts.find(count => count.column === column)
      assert.ok((of('sealed_value')?.reencrypted ?? 0) > 0)
      assert.ok((of('previous_sealed_value')?.reencrypted ?? 0) > 0)
      assert.ok((of('sealed_body')?.reencrypted ?? 0) > 0)
      // One row was broken here, another was copied from a different row above.
      assert.equal(of('sealed_value')?.undecryptable, 2)
      assert.equal(first.remaining, 2)
      assert.ok(progress.includes('sealed_value'))
      assert.equal(await open(alone), 'survives too')
      await assert.rejects(open(createSecretBox({ key: old })), failsWith('SECRET_NOT_DECRYPTABLE', id))

      const again = await reencryptSecrets({ ...app.services, secrets: both })
      assert.equal(
        again.counts.reduce((sum, count) => sum + count.reencrypted, 0),
        0,
      )
      const restarted = await startApp({
        databaseUrl: app.databaseUrl,
        env: { SECRETS_ENCRYPTION_KEY: next, SECRETS_ENCRYPTION_KEY_PREVIOUS: old },
      })
      const replay = await restarted.as(app.admin.token).post('/project-keys', { name: 'kept' }, minted)
      assert.equal(replay.headers.get('idempotency-replayed'), 'true')
      assert.equal(replay.body.secret, key)
      await restarted.close()
      await reencryptSecrets({ ...app.services, secrets: createSecretBox({ key: old, previous: [next] }) })
    })

    it('is safe alongside writers, in batches', async () => {
      const ids = await Promise.all(Array.from({ length: 30 }, (_, index) => store(`value ${index}`)))
      const box = createSecretBox({ key: old })
      const bulk = Array.from({ length: 1200 }, (_, index) => `sec_${String(index).padStart(26, '0')}`)
      await app.rows(
        `insert into secrets (id, project_id, name, sealed_value)
         select id, $1, 'bulk', sealed from unnest($2::text[], $3::text[]) as b(id, sealed) returning 1`,
        [project.id, bulk, bulk.map(id => box.seal(id, { kind: 'secret', id, project_id: project.id }))],
      )
      const both = createSecretBox({ key: next, previous: [old] })
      const batches: number[] = []
      const [result] = await Promise.all([
        reencryptSecrets({ ...app.services, secrets: both }, count => batches.push(count.reencrypted)),
        ...ids.map((id, index) => project.key.patch(`/secrets/${id}`, { name: `written ${index}` })),
      ])
      assert.equal(result.remaining, 2)
      assert.ok(batches.length >= 3, String(batches))
      assert.equal(await openSecret(app.pool, { ...app.services, secrets: both }, project.id, bulk[1199]), bulk[1199])
      for (const [index, id] of ids.entries())
        assert.equal(await openSecret(app.pool, { ...app.services, secrets: both }, project.id, id), `value ${index}`)
      await reencryptSecrets({ ...app.services, secrets: createSecretBox({ key: old, previous: [next] }) })
    })

    it('reaches every column that holds sealed values', async () => {
      const declared = new Set(sealedColumns.all().map(column => `${column.table}.${column.column}`))
      const named = await app.rows(
        `select table_name || '.' || column_name as name from information_schema.columns
         where table_schema = 'public' and column_name like '%sealed\\_%'`,
      )
      assert.ok(named.length >= 3)
      for (const { name } of named) assert.ok(declared.has(name), name)
    })
  })
})
