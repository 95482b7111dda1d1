import assert from 'node:assert/strict'
import { sealedColumns } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import { createSecretBox } from '#core/secrets/secretbox.ts'
import { authoredTemplate } from '#formations/plans/sealed.ts'
import { reencryptSecrets } from '#identity/secrets/reencrypt.ts'
import { type Reply, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { forSuite } from '../support/suite.ts'
import { startHandler } from './handler-double.ts'

/** Every value begins so. */
const MARK = 'zqxj-hidden-'
/** So do those that the resource itself shows: the formation does not. */
const OWN = 'zqxj-shown-'

describe('secret values of formations', () => {
  const handler = forSuite(startHandler)
  const app = forSuite(() => startApp({ workers: ['orchestration', 'delivery'], inProcess: true, env: handler.env }))
  const project = forSuite(() => app.project())
  const answers: string[] = []

  const kept = async (reply: Promise<Reply>): Promise<any> => {
    const { status, body } = await reply
    answers.push(JSON.stringify(body))
    assert.ok(status < 300, `${status} ${JSON.stringify(body)}`)
    return body
  }
  /** Where a secret value appears in clear: tables, log lines, answers. */
  const places = async (): Promise<string[]> => {
    const { pool } = app
    const tables = await pool.any(sql.unsafe`
      select table_schema as schema, table_name as name from information_schema.tables
      where table_schema in ('public', 'pgboss') and table_type = 'BASE TABLE'
        and not (select relispartition from pg_class where oid = format('%I.%I', table_schema, table_name)::regclass)`)
    const found: string[] = []
    for (const { schema, name } of tables as any[]) {
      const table = sql.identifier([schema, name])
      const count = await pool.oneFirst(sql.unsafe`
        select count(*)::int from ${table} t where to_jsonb(t)::text like ${`%${MARK}%`}
          or (${name.startsWith('formation')} and to_jsonb(t)::text like ${`%${OWN}%`})`)
      if (count !== 0) found.push(name)
    }
    const lists = await Promise.all(
      ['/events', '/audit-log'].map(path => app.admin.get(`${path}?project_id=${project.id}&limit=100`)),
    )
    const shown = [...app.logs, ...lists.map(({ body }) => JSON.stringify(body))]
    await kept(project.key.get('/formations'))
    return [
      ...found,
      ...shown.filter(text => text.includes(MARK)),
      ...answers.filter(text => text.includes(MARK) || text.includes(OWN)),
    ]
  }

  const template = (name: string, more: object = {}) => ({
    parameters: { Key: { no_echo: true, use_previous_value: true } },
    resources: {
      Written: { type: 'secret', properties: { name: `${name} written`, value: `${MARK}in-template-${name}` } },
      Given: { type: 'secret', properties: { name: `${name} given`, value: { sub: 'Bearer ${Key}' } } },
      Provider: { type: 'ai_provider', properties: { name, provider: 'ollama', default_model: 'demo' } },
      Agent: { type: 'agent', properties: { name, ai_provider_id: { ref: 'Provider' } } },
      Session: {
        type: 'session',
        properties: { agent_id: { ref: 'Agent' }, tool_context: { token: `${OWN}context-${name}` } },
      },
      Thing: { type: 'thing', properties: { label: name, password: { param: 'Key' } } },
      ...more,
    },
    outputs: { key: { param: 'Key' }, said: { sub: 'the key ${Key}' }, given: { ref: 'Given' } },
    metadata: { key: { sub: 'x ${Key}' } },
  })

  before(async () => {
    await kept(project.key.post('/webhooks', { name: 'all', url: 'https://example.com/', events: ['*'] }))
  })

  it('appear in no table, log line, event, entry, plan or answer in clear', async () => {
    const parameters = { Key: `${MARK}parameter` }
    const created = await kept(project.key.post('/formations', { name: 'one', template: template('a'), parameters }))
    assert.equal(created.status, 'active', JSON.stringify(created.error))
    assert.deepEqual(created.outputs.key, { no_echo: true })
    assert.deepEqual(created.outputs.said, { no_echo: true })
    assert.deepEqual(created.resolved_metadata, { key: '***' })
    assert.deepEqual(await places(), [])

    const changed = { template: template('b'), parameters: { Key: `${MARK}other` } }
    await kept(project.key.post('/formations/plan', { formation_id: created.id, ...changed }))
    const updated = await kept(project.key.put(`/formations/${created.id}`, changed))
    assert.equal(updated.status, 'active', JSON.stringify(updated.error))
    assert.deepEqual(await places(), [])

    const late = { type: 'thing', properties: { label: 'refused', password: `${MARK}refused` }, depends_on: 'Thing' }
    const broken = { template: template('c', { Late: late }), parameters: { Key: `${MARK}third` } }
    const failed = await kept(project.key.put(`/formations/${created.id}`, broken))
    assert.equal(failed.error.code, 'FORMATION_HANDLER_FAILED')
    const undone = await kept(project.key.post('/formations', { name: 'two', ...broken }))
    assert.equal(undone.status, 'failed')
    await kept(project.key.get(`/formations/${undone.id}/events`))
    assert.deepEqual(await places(), [])
    const passwords = handler.calls.flatMap(({ body }) => body.properties?.password ?? [])
    assert.deepEqual(
      [...new Set(passwords)],
      ['parameter', 'other', 'third', 'refused'].map(name => MARK + name),
    )
  })

  it('are put under a new key with the others', async () => {
    const old = testEnvironment('').SECRETS_ENCRYPTION_KEY
    const box = createSecretBox({ key: 'ee'.repeat(32), previous: [old] })
    const { counts } = await reencryptSecrets({ ...app.services, secrets: box })
    const sealed = sealedColumns.all().filter(({ table }) => table.startsWith('formation'))
    assert.ok(sealed.length >= 3)
    for (const { table, column } of sealed) {
      const count = counts.find(each => each.table === table && each.column === column)
      assert.equal(count?.undecryptable, 0, `${table}.${column}`)
    }
    const templates = counts.find(({ column }) => column === 'sealed_values')
    assert.ok((templates?.reencrypted ?? 0) > 0)
    const row = await app.pool.one<any>(sql.unsafe`
      select id, project_id, template, sealed_values from formations where name = 'one'`)
    const alone = { ...app.services, secrets: createSecretBox({ key: 'ee'.repeat(32) }) }
    assert.match(JSON.stringify(authoredTemplate(alone, row)), new RegExp(`${MARK}in-template`))
  })
})
