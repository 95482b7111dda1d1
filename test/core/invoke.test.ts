import assert from 'node:assert/strict'
import { callAs } from '#core/api/call.ts'
import { operations } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { authentication } from '#core/invoke/hooks.ts'
import { invoke } from '#core/invoke/invoke.ts'
import type { Tx } from '#core/writes/writer.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** Operations through the pipeline without HTTP, as surfaces that are no requests call them. */
describe('invoke', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let admin: Caller
  let limited: Caller
  before(async () => {
    const resolve = async (token: string | null) =>
      (await authentication.only()?.(app.services, token as string, { ip: null })) as Caller
    admin = await resolve(app.admin.token)
    const action = ['actors:ListActors', 'actors:GetActor', 'actors:CreateActor']
    const user = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action, resource: [`srn:${project.id}:actor:*`] }] },
    ])
    limited = await resolve(user.token)
  })

  type Input = NonNullable<Parameters<typeof callAs>[2]>
  const call = async (tx: Tx | undefined, caller: Caller, id: string, input: Omit<Input, 'tx'> = {}): Promise<any> =>
    (await invoke(app.services, operations.get(id), callAs(caller, 'formation', { ...input, tx }))).body

  const entries = async (requestId: string) =>
    (await app.services.pool.any(sql.unsafe`
      select action, status, project_id, detail from audit_entries where request_id = ${requestId} order by id`)) as any[]

  it('keeps a precondition that came over another surface, of operations that check it themselves too', async () => {
    const made = await project.key.post('/documents', { title: 'a', content: 'text' })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const document_id = made.body.id
    const params = { document_id }
    const read = await project.key.get(`/documents/${document_id}`)
    const ifMatch = read.headers.get('etag') as string
    const stale = { params, ifMatch: 'W/"stale"' }
    const refused = (id: string, input: Omit<Input, 'tx'>) =>
      assert.rejects(call(undefined, admin, id, input), { code: 'PRECONDITION_FAILED' })
    await refused('updateDocument', { ...stale, body: { title: 'b' } })
    await refused('withdrawDocument', { ...stale, body: {} })
    await refused('restoreDocumentVersion', { ...stale, params: { ...params, version: '1' }, body: {} })
    const changed = await call(undefined, admin, 'updateDocument', { params, ifMatch, body: { title: 'b' } })
    assert.equal(changed.title, 'b')
  })

  it('makes ten operations one transaction: all of it is there, or nothing', async () => {
    const project_id = project.id
    const work = async (tx: Tx, requestId: string) => {
      const as = (id: string, input: Omit<Input, 'tx'>) => call(tx, admin, id, { ...input, requestId })
      const secret = await as('createSecret', { body: { project_id, name: 'stack', value: 'v' } })
      const actor = await as('createActor', { body: { project_id, name: 'first' } })
      await as('updateActor', { params: { actor_id: actor.id }, body: { name: 'second' } })
      await as('mergeActorTags', { params: { actor_id: actor.id }, body: { a: 'b' } })
      const seen = await as('getActor', { params: { actor_id: actor.id } })
      assert.deepEqual([seen.name, seen.tags], ['second', { a: 'b' }])
      const listed = await as('listActors', { query: { project_id } })
      assert.ok(listed.data.some((each: any) => each.id === actor.id))
      const other = await as('createActor', { body: { project_id, name: 'other' } })
      await as('mergeActor', { params: { actor_id: other.id }, body: { into_actor_id: actor.id } })
      const hook = { project_id, name: 'hook', url: 'https://example.com/', events: ['*'] }
      const webhook = await as('createWebhook', { body: hook })
      await as('deleteSecret', { params: { secret_id: secret.id } })
      return { actor, other, webhook, secret }
    }

    const gone = await app.services
      .write(async tx => {
        await work(tx, 'rolled-back')
        throw new Error('the stack fails')
      })
      .catch(error => error)
    assert.equal(gone.message, 'the stack fails')
    assert.deepEqual(await entries('rolled-back'), [])
    assert.equal((await project.key.get('/actors')).body.total, 0)
    assert.equal((await project.key.get('/webhooks')).body.total, 0)

    const made = await app.services.write(tx => work(tx, 'committed'))
    assert.equal((await project.key.get(`/actors/${made.actor.id}`)).body.name, 'second')
    assert.equal((await project.key.get(`/actors/${made.other.id}`)).status, 404)
    assert.equal((await project.key.get(`/secrets/${made.secret.id}`)).status, 404)
    const written = await entries('committed')
    assert.deepEqual(
      written.map(({ action }) => action),
      [
        'secrets:CreateSecret',
        'actors:CreateActor',
        'actors:UpdateActor',
        'actors:UpdateActor',
        'actors:CreateActor',
        'actors:DeleteActor',
        'webhooks:CreateWebhook',
        'secrets:DeleteSecret',
      ],
    )
    assert.ok(written.every(({ detail }) => detail.surface === 'formation'))
    const events = await app.services.pool.anyFirst(sql.unsafe`
      select name from events where project_id = ${project.id} and resource_id = ${made.actor.id} order by id`)
    assert.deepEqual(events, ['actors.created', 'actors.updated', 'actors.updated', 'actors.updated'])
  })

  it('undoes a refused call alone, and audits it with what surrounds it', async () => {
    const kept = await app.services.write(async tx => {
      const actor = await call(tx, limited, 'createActor', { body: { project_id: project.id, name: 'kept' } })
      const taken = { project_id: project.id, name: 'x', external_id: 'taken' }
      await call(tx, admin, 'createActor', { body: taken })
      for (const [caller, id, input, code] of [
        [limited, 'updateActor', { params: { actor_id: actor.id }, body: { name: 'no' } }, 'FORBIDDEN'],
        [limited, 'createActor', { body: { project_id: project.id } }, 'VALIDATION_FAILED'],
        [limited, 'getActor', { params: { actor_id: 'actor_00000000000000000000000000' } }, 'RESOURCE_NOT_FOUND'],
        // Refused by the database, which would end a transaction that it is part of.
        [admin, 'updateActor', { params: { actor_id: actor.id }, body: { external_id: 'taken' } }, 'NAME_CONFLICT'],
      ] as const)
        await assert.rejects(
          call(tx, caller, id, { ...input, requestId: 'refused' }),
          error => error instanceof AppError && error.code === code,
          code,
        )
      return actor
    })
    assert.equal((await project.key.get(`/actors/${kept.id}`)).body.name, 'kept')
    assert.deepEqual(
      (await entries('refused')).map(({ action, status, project_id }) => [action, status, project_id]),
      [
        ['actors:UpdateActor', 403, project.id],
        ['actors:CreateActor', 400, project.id],
        ['actors:UpdateActor', 409, project.id],
      ],
    )
  })

  it('compiles schemas of a caller within the transaction', async () => {
    let runs = 0
    const schemas = await app.services.write(async tx => {
      runs++
      const made = []
      for (let n = 0; n < 12; n++) {
        const schema = { type: 'object', properties: { [`field${n}`]: { type: 'string' } } }
        const path_prefix = `/schemas/${n}`
        const body = { project_id: project.id, resource_type: 'file', path_prefix, schema }
        made.push(await call(tx, admin, 'createMetadataSchema', { body, requestId: 'schemas' }))
      }
      return made
    })
    assert.equal(runs, 1)
    assert.equal((await project.key.get('/metadata-schemas')).body.total, schemas.length)
    assert.equal((await entries('schemas')).length, schemas.length)
  })

  it('needs no transaction around it', async () => {
    const actor = await call(undefined, limited, 'createActor', { body: { project_id: project.id, name: 'alone' } })
    assert.equal((await call(undefined, limited, 'getActor', { params: { actor_id: actor.id } })).name, 'alone')
  })

  it('refuses operations with separate transactions', async () => {
    await assert.rejects(
      app.services.write(tx =>
        call(tx, admin, 'createDocument', { body: { project_id: project.id, content: 'text' } }),
      ),
      error => error instanceof AppError && /opens its own transactions/.test(String((error.cause as Error).message)),
    )
  })
})
