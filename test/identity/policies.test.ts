import assert from 'node:assert/strict'
import { policyCatalogue } from '#core/api/catalogue.ts'
import { operations as declared } from '#core/api/operation.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { checkPolicyDocument } from '#core/iam/policy.ts'
import type { Tx } from '#core/writes/writer.ts'
import { attachPolicy, detachPolicy } from '#identity/policies/attach.ts'
import { managedPolicies, syncManagedPolicies } from '#identity/policies/managed.ts'
import { eventually, type Reply, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const allow = (action: string | string[], resource?: string | string[], condition?: object) => ({
  statement: [
    {
      effect: 'Allow',
      action: [action].flat(),
      ...(resource ? { resource: [resource].flat() } : {}),
      ...(condition ? { condition } : {}),
    },
  ],
})
const MISSING = 'pol_00000000000000000000000000'

describe('policies', () => {
  const app = forSuite(startApp)

  const make = async (document: object = allow('*'), more: object = {}) =>
    (await app.admin.post('/policies', { document, ...more })).body

  describe('authoring', () => {
    it('accepts names of later modules, stored unchanged', async () => {
      const project = await app.project()
      const document = {
        statement: [
          {
            effect: 'Allow',
            action: ['actors:ListActors', 'memories:GetMemory', 'memories:UpdateMemoryEntry', 'formations:*'],
            resource: [`srn:${project.id}:actor:*`, `srn:${project.id}:memory_store:*`, 'srn:*:orchestration-runs:*'],
          },
          { effect: 'Allow', action: ['memories.superseded', 'orchestration_runs.*', 'actors.created'] },
        ],
      }
      const made = await app.admin.post('/policies', { document })
      assert.deepEqual([made.status, made.body.document], [201, document], JSON.stringify(made.body))
      const user = await app.user(undefined, [document])
      assert.equal((await user.get(`/actors?project_id=${project.id}`)).status, 200)
      for (const action of ['memories:GetMemories', 'memory:GetMemory', 'memories.supersede'])
        assert.equal((await app.admin.post('/policies', { document: allow(action) })).status, 400, action)
    })

    it('refuses incomplete documents with the path', async () => {
      const statement = { effect: 'Allow', action: ['*'] }
      for (const [path, code, document] of [
        ['document.statement[0].effect', 'INVALID_EFFECT', { statement: [{ ...statement, effect: 'allow' }] }],
        ['document.statement', 'TOO_SMALL', { statement: [] }],
        ['document.statement[0].action[1]', 'UNKNOWN_ACTION', allow(['*', 'actors:GetActors'])],
        ['document.statement[0].action[0]', 'UNKNOWN_ACTION', allow('actorz:*')],
        ['document.statement[0].resource[0]', 'INVALID_RESOURCE', allow('*', 'srn:P:actor')],
        ['document.statement[0].resource[0]', 'INVALID_RESOURCE', allow('*', 'srn:P:actor:actor_*')],
        ['document.statement[0].resource[0]', 'INVALID_RESOURCE', allow('*', 'srn:P:nonsense:*')],
        [
          'document.statement[0].condition',
          'INVALID_CONDITION',
          allow('*', '*', { StringEqual: { 'svc:ResourceTag/a': 'b' } }),
        ],
        ['document.statement[0].extra', 'UNKNOWN_PROPERTY', { statement: [{ ...statement, extra: 1 }] }],
        ['document.version', 'UNKNOWN_PROPERTY', { statement: [statement], version: 1 }],
        ['document', 'INVALID_TYPE', 'text'],
        [
          'document',
          'TOO_LARGE',
          allow(
            '*',
            Array.from({ length: 100 }, (_, i) => `srn:P:actor:${i}${'x'.repeat(700)}`),
          ),
        ],
      ] as const) {
        const reply = await app.admin.post('/policies', { document })
        assert.equal(reply.status, 400, path)
        const [problem] = reply.body.error.meta.problems
        assert.equal(problem.code, code, JSON.stringify(problem))
        assert.ok(problem.path.startsWith(path), `${problem.path} for ${path}`)
        const policy = await make()
        assert.equal((await app.admin.put(`/policies/${policy.id}`, { document })).status, 400)
        assert.equal((await app.admin.patch(`/policies/${policy.id}`, { document })).status, 400)
      }
      assert.equal((await app.admin.post('/policies', {})).status, 400)
      assert.equal((await app.admin.post('/policies', { document: allow('*'), name: 'x'.repeat(256) })).status, 400)
      assert.equal((await app.admin.post('/policies', { document: allow('*'), color: 1 })).status, 400)
    })

    it('accepts prefixes, aliases, event patterns and type spellings, and returns them unchanged', async () => {
      const document = {
        statement: [
          {
            effect: 'Allow',
            action: ['actors:Get*', 'api-keys:ListApiKeys', 'actors.created', 'actors.*', 'projects:*'],
            resource: ['srn:P:actors:*', 'srn:P:api-key:*', '*'],
            condition: {
              StringEquals: { 'svc:ResourceTag/cost_center': 'r&d', 'soat:ResourceTag/costCenter': ['a', 'b'] },
              StringNotLike: { 'svc:ResourceTag/a/b': '*x?' },
            },
          },
        ],
      }
      const reply = await app.admin.post('/policies', { name: 'n', description: null, document })
      assert.equal(reply.status, 201)
      assert.deepEqual((await app.admin.get(`/policies/${reply.body.id}`)).body.document, document)
      assert.deepEqual(reply.body.name, 'n')
    })
  })

  describe('records', () => {
    it('are replaced by PUT, which keeps an absent name, and changed by PATCH', async () => {
      const { id } = await make(allow('*'), { name: 'one', description: 'first' })
      const put = await app.admin.put(`/policies/${id}`, { document: allow('actors:*') })
      assert.deepEqual([put.status, put.body.name, put.body.description], [200, 'one', 'first'])
      assert.deepEqual(put.body.document, allow('actors:*'))
      const patched = await app.admin.patch(`/policies/${id}`, { name: null })
      assert.deepEqual([patched.body.name, patched.body.description], [null, 'first'])
      assert.equal((await app.admin.put(`/policies/${id}`, { name: 'x' })).status, 400)
    })

    it('are unchanged by a PATCH without fields', async () => {
      const { id } = await make(allow('*'), { name: 'still' })
      const { body } = await app.admin.patch(`/policies/${id}`, { name: 'moved' })
      const reply = await app.admin.patch(`/policies/${id}`, {})
      assert.deepEqual([reply.status, reply.body], [200, body])
      assert.equal((await app.admin.get(`/policies/${id}/versions`)).body.total, 2)
    })

    it('honour If-Match in an update', async () => {
      const { id } = await make()
      const tag = { 'if-match': (await app.admin.get(`/policies/${id}`)).headers.get('etag') as string }
      assert.equal((await app.admin.put(`/policies/${id}`, { document: allow('actors:*') }, tag)).status, 200)
      assert.equal((await app.admin.put(`/policies/${id}`, { document: allow('*') }, tag)).status, 412)
      assert.equal((await app.admin.delete(`/policies/${id}`, tag)).status, 412)
    })

    it('are listed by part of the name and by user, an unknown user giving an empty page', async () => {
      const { id } = await make(allow('*'), { name: 'Needle 50%' })
      const user = await app.user()
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [id] })
      assert.deepEqual(
        (await app.admin.get('/policies?name=needle%2050%25')).body.data.map((p: any) => p.id),
        [id],
      )
      assert.deepEqual(
        (await app.admin.get(`/policies?user_id=${user.id}`)).body.data.map((p: any) => p.id),
        [id],
      )
      assert.deepEqual((await app.admin.get('/policies?user_id=nobody')).body, {
        data: [],
        total: 0,
        limit: 50,
        offset: 0,
      })
    })

    it('are refused to non-admins, also for ids that do not exist', async () => {
      const { id } = await make()
      const user = await app.user(undefined, [allow('*')])
      for (const reply of [
        await user.get('/policies'),
        await user.post('/policies', {}),
        await user.get(`/policies/${id}`),
        await user.get(`/policies/${MISSING}`),
        await user.put(`/policies/${id}`, {}),
        await user.patch(`/policies/${MISSING}`, {}),
        await user.delete(`/policies/${MISSING}`),
        await user.get(`/policies/${MISSING}/versions`),
        await user.get(`/policies/${id}/attachments`),
        await user.post(`/policies/${id}/versions/1/restore`),
        await user.put(`/users/${user.id}/policies`, { policy_ids: [] }),
        await user.post(`/users/${user.id}/policies/${id}`),
        await user.delete(`/users/${user.id}/policies/${id}`),
      ])
        assert.equal(reply.status, 403)
      assert.equal((await app.admin.get(`/policies/${MISSING}`)).body.error.code, 'RESOURCE_NOT_FOUND')
    })

    it('leave global audit entries that name the version', async () => {
      const { id } = await make()
      await app.admin.patch(`/policies/${id}`, { name: 'second' })
      const entries = (await app.pool.any(sql.unsafe`
        select action, project_id, resource_srn, status, detail from audit_entries
        where resource_public_id = ${id} order by created_at, id`)) as readonly any[]
      assert.deepEqual(
        entries.map(entry => [entry.action, entry.project_id, entry.status]),
        [
          ['policies:CreatePolicy', null, 201],
          ['policies:UpdatePolicy', null, 200],
        ],
      )
      assert.equal(entries[1].resource_srn, `srn:*:policy:${id}`)
      assert.equal(entries[1].detail.version, 2)
    })
  })

  describe('attachments', () => {
    it('keep their order, collapse duplicates and are replaced as a whole', async () => {
      const [a, b, c] = [await make(), await make(), await make()].map(policy => policy.id)
      const user = await app.user()
      assert.equal((await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [c, a, c, b] })).status, 204)
      assert.deepEqual((await app.admin.get(`/users/${user.id}`)).body.policy_ids, [c, a, b])
      const own = await user.get(`/users/${user.id}/policies?limit=2`)
      assert.deepEqual(
        own.body.data.map((policy: any) => policy.id),
        [c, a],
      )
      assert.equal(own.body.total, 3)
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [b] })
      assert.deepEqual((await app.admin.get(`/users/${user.id}`)).body.policy_ids, [b])
    })

    it('are unchanged if an ID is unknown, the body malformed or the list too long', async () => {
      const { id } = await make()
      const user = await app.user()
      const path = `/users/${user.id}/policies`
      await app.admin.put(path, { policy_ids: [id] })
      const unknown = await app.admin.put(path, { policy_ids: [id, MISSING] })
      assert.deepEqual([unknown.status, unknown.body.error.code], [400, 'POLICY_NOT_FOUND'])
      assert.equal(unknown.body.error.meta.id, MISSING)
      assert.equal((await app.admin.put(path, { policy_ids: id })).body.error.code, 'VALIDATION_FAILED')
      assert.equal((await app.admin.put(path, {})).status, 400)
      const many = Array.from({ length: 51 }, (_, index) => `pol_${index}`)
      assert.equal((await app.admin.put(path, { policy_ids: many })).body.error.code, 'VALIDATION_FAILED')
      assert.deepEqual((await app.admin.get(`/users/${user.id}`)).body.policy_ids, [id])
      assert.equal(
        (await app.admin.put(`/users/${MISSING.replace('pol', 'user')}/policies`, { policy_ids: [] })).status,
        404,
      )
    })

    it('are added and removed one by one, again and again', async () => {
      const [a, b] = [(await make()).id, (await make()).id]
      const user = await app.user()
      for (const id of [a, b, a]) assert.equal((await app.admin.post(`/users/${user.id}/policies/${id}`)).status, 204)
      assert.deepEqual((await app.admin.get(`/users/${user.id}`)).body.policy_ids, [a, b])
      for (const id of [a, a, MISSING])
        assert.equal((await app.admin.delete(`/users/${user.id}/policies/${id}`)).status, 204)
      assert.deepEqual((await app.admin.get(`/users/${user.id}`)).body.policy_ids, [b])
      assert.equal((await app.admin.post(`/users/${user.id}/policies/${MISSING}`)).status, 404)
    })

    it('are neither lost nor restored by concurrent changes', async () => {
      const [a, b, c] = [(await make()).id, (await make()).id, (await make()).id]
      const user = await app.user()
      const attachMeanwhile = async (id: string, change: (tx: Tx) => Promise<void>): Promise<string[]> => {
        let attached: Promise<Reply> | undefined
        await app.services.write(async tx => {
          await change(tx)
          attached = app.admin.post(`/users/${user.id}/policies/${id}`)
          await onSeparateConnection(() =>
            eventually(() =>
              app.pool.exists(sql.unsafe`
                select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`),
            ),
          )
        })
        assert.equal((await attached)?.status, 204)
        return (await app.admin.get(`/users/${user.id}`)).body.policy_ids
      }
      assert.deepEqual(await attachMeanwhile(b, tx => attachPolicy(tx, user.id, a)), [a, b])
      assert.deepEqual(await attachMeanwhile(c, tx => detachPolicy(tx, user.id, a)), [b, c])
    })

    it('of an empty list leave a user with nothing', async () => {
      const project = await app.project()
      const user = await app.user(undefined, [allow('*')])
      assert.equal((await user.get(`/projects/${project.id}`)).status, 200)
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
      assert.equal((await user.get(`/projects/${project.id}`)).status, 403)
      assert.equal((await user.get(`/users/${user.id}`)).status, 200)
    })

    it('of a key or a user keep a policy from being deleted', async () => {
      const { id } = await make()
      const user = await app.user()
      const key = (await app.admin.post('/project-keys', { policy_ids: [id] })).body
      await app.admin.post(`/users/${user.id}/policies/${id}`)
      const refused = await app.admin.delete(`/policies/${id}`)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'POLICY_HAS_DEPENDENTS'])
      const { counts, sample_ids, forcible } = refused.body.error.meta
      assert.deepEqual(counts, { users: 1, project_keys: 1, triggers: 0, webhooks: 0 })
      assert.deepEqual(sample_ids, { users: [user.id], project_keys: [key.id] })
      assert.equal(forcible, false)
      const attached = await app.admin.get(`/policies/${id}/attachments`)
      assert.deepEqual(attached.body.data, [
        { type: 'project_key', id: key.id },
        { type: 'user', id: user.id },
      ])
      await app.admin.patch(`/project-keys/${key.id}`, { policy_ids: [] })
      await app.admin.delete(`/users/${user.id}/policies/${id}`)
      assert.equal((await app.admin.delete(`/policies/${id}`)).status, 204)
      assert.equal((await app.admin.get(`/policies/${id}`)).status, 404)
    })

    it('created while the policy is deleted are refused or prevent the deletion', async () => {
      const users = [await app.user(), await app.user(), await app.user()]
      for (let round = 0; round < 5; round++) {
        const { id } = await make()
        const [gone, ...attached] = await Promise.all([
          app.admin.delete(`/policies/${id}`),
          ...users.map(user => app.admin.put(`/users/${user.id}/policies`, { policy_ids: [id] })),
        ])
        if (gone.status === 204) assert.ok(attached.every(reply => reply.body?.error.code === 'POLICY_NOT_FOUND'))
        else {
          assert.equal(gone.body.error.code, 'POLICY_HAS_DEPENDENTS')
          assert.ok(attached.every(reply => reply.status === 204))
        }
      }
    })
  })

  describe('versions', () => {
    it('are appended by every change and by no other write', async () => {
      const { id } = await make(allow('*'), { name: 'v' })
      await app.admin.put(`/policies/${id}`, { document: allow('actors:*') })
      const same = await app.admin.put(`/policies/${id}`, { document: allow('actors:*') })
      assert.equal(same.body.version, 2)
      await app.admin.patch(`/policies/${id}`, { description: 'third' })
      const { body } = await app.admin.get(`/policies/${id}/versions`)
      assert.deepEqual(
        body.data.map((version: any) => version.version),
        [3, 2, 1],
      )
      assert.equal(body.total, 3)
      assert.deepEqual(body.data[2].document, allow('*'))
      assert.equal(body.data[0].created_by, (await app.admin.get('/users/me')).body.id)
      assert.deepEqual((await app.admin.get(`/policies/${id}/versions/2`)).body, body.data[1])
      assert.equal((await app.admin.get(`/policies/${id}/versions/9`)).status, 404)
      assert.equal((await app.admin.get(`/policies/${id}/versions/x`)).status, 400)
    })

    it('are compared, by default the current one with the one before', async () => {
      const { id } = await make(allow('*'), { name: 'a' })
      await app.admin.put(`/policies/${id}`, { name: 'b', document: allow(['actors:*', 'projects:*'], '*') })
      const expected = {
        from: 1,
        to: 2,
        changes: [
          { path: 'name', op: 'changed', before: 'a', after: 'b' },
          { path: 'document.statement[0].action[0]', op: 'changed', before: '*', after: 'actors:*' },
          { path: 'document.statement[0].action[1]', op: 'added', before: null, after: 'projects:*' },
          { path: 'document.statement[0].resource', op: 'added', before: null, after: ['*'] },
        ],
      }
      assert.deepEqual((await app.admin.get(`/policies/${id}/versions/compare`)).body, expected)
      assert.deepEqual((await app.admin.get(`/policies/${id}/versions/compare?from=1&to=2`)).body, expected)
      assert.deepEqual((await app.admin.get(`/policies/${id}/versions/compare?from=2`)).body.changes, [])
      assert.equal((await app.admin.get(`/policies/${id}/versions/compare?from=7`)).status, 404)
      assert.equal((await app.admin.get(`/policies/${id}/versions/compare?from=0`)).status, 400)
    })

    it('are restored as a new version that applies immediately', async () => {
      const project = await app.project()
      const { id } = await make(allow('projects:*'))
      const user = await app.user()
      await app.admin.post(`/users/${user.id}/policies/${id}`)
      await app.admin.put(`/policies/${id}`, { document: allow('actors:*') })
      assert.equal((await user.get(`/projects/${project.id}`)).status, 403)
      const restored = await app.admin.post(`/policies/${id}/versions/1/restore`)
      assert.deepEqual([restored.status, restored.body.version], [200, 3])
      assert.deepEqual(restored.body.document, allow('projects:*'))
      assert.equal((await user.get(`/projects/${project.id}`)).status, 200)
      assert.equal((await app.admin.post(`/policies/${id}/versions/9/restore`)).status, 404)
    })
  })

  describe('managed', () => {
    before(() => Promise.all([syncManagedPolicies(app.services), syncManagedPolicies(app.services)]))

    it('are valid documents and cover every read action', () => {
      const operations = declared.all()
      const documents = managedPolicies(operations)
      for (const { id, document } of documents)
        assert.deepEqual(checkPolicyDocument(document, policyCatalogue(operations)), [], id)
      const reading = documents[0].document.statement.flatMap(statement => statement.action)
      assert.ok(reading.includes('actors:GetActor') && reading.includes('actors:ListActors'))
      for (const action of reading) assert.doesNotMatch(action, /:(Create|Update|Delete|Rotate)/)
    })

    it('are attachable, never editable', async () => {
      const id = 'pol_managed_read_only'
      const found = await app.admin.get(`/policies/${id}`)
      assert.deepEqual([found.status, found.body.managed, found.body.version], [200, true, 1])
      for (const reply of [
        await app.admin.put(`/policies/${id}`, { document: allow('*') }),
        await app.admin.patch(`/policies/${id}`, { name: 'mine' }),
        await app.admin.delete(`/policies/${id}`),
        await app.admin.post(`/policies/${id}/versions/1/restore`),
      ])
        assert.deepEqual([reply.status, reply.body.error.code], [403, 'FORBIDDEN'])
      const project = await app.project()
      const user = await app.user()
      assert.equal((await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [id] })).status, 204)
      assert.equal((await user.get(`/projects/${project.id}`)).status, 200)
      assert.equal((await user.post('/actors', { project_id: project.id, name: 'x' })).status, 403)
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: ['pol_managed_project_admin'] })
      assert.equal((await user.post('/actors', { project_id: project.id, name: 'x' })).status, 201)
      assert.equal((await user.post('/projects', { name: 'x' })).status, 403)
    })

    it('are unchanged if nothing changed', async () => {
      await syncManagedPolicies(app.services)
      assert.equal((await app.admin.get('/policies/pol_managed_agent_runner')).body.version, 1)
    })
  })

  describe('simulation', () => {
    it('names the statement and the policy that decide in each layer', async () => {
      const project = await app.project()
      const user = await app.user()
      const first = await make(allow('actors:*', `srn:${project.id}:actor:*`))
      const second = await make({
        statement: [
          { effect: 'Allow', action: ['projects:*'] },
          {
            effect: 'Deny',
            action: ['actors:DeleteActor'],
            condition: { StringEquals: { 'svc:ResourceTag/keep': 'yes' } },
          },
        ],
      })
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [first.id, second.id] })
      const resource = `srn:${project.id}:actor:actor_1`
      const ask = async (body: object, by = app.admin) => (await by.post('/policies/simulate', body)).body
      const base = { user_id: user.id, action: 'actors:DeleteActor', resource }
      assert.deepEqual(await ask(base), {
        allowed: true,
        layers: [{ kind: 'user', id: user.id, decision: 'allow', policy_id: first.id, statement_index: 0 }],
      })
      assert.deepEqual(await ask({ ...base, tags: { keep: 'yes' } }, user), {
        allowed: false,
        layers: [{ kind: 'user', id: user.id, decision: 'deny', policy_id: second.id, statement_index: 1 }],
      })
      const boundary = await make(allow('actors:GetActor'))
      const key = (await user.post('/project-keys', { project_id: project.id, policy_ids: [boundary.id] })).body
      assert.deepEqual(await ask({ key_id: key.id, action: 'actors:DeleteActor', resource }, user), {
        allowed: false,
        layers: [
          { kind: 'user', id: user.id, decision: 'allow', policy_id: first.id, statement_index: 0 },
          { kind: 'key', id: key.id, decision: 'none', policy_id: null, statement_index: null },
        ],
      })
      assert.equal((await ask({ key_id: key.id, action: 'actors:GetActor', resource })).allowed, true)
      const elsewhere = 'srn:proj_other:actor:a'
      assert.equal((await ask({ key_id: key.id, action: 'actors:GetActor', resource: elsewhere })).allowed, false)
      assert.equal(
        (await ask({ user_id: user.id, action: 'users:CreateUser', resource: 'srn:*:user:*' })).allowed,
        false,
      )
      const admin = (await app.admin.get('/users/me')).body.id
      const all = await ask({ user_id: admin, action: 'users:CreateUser', resource: 'srn:*:user:*' })
      assert.deepEqual(all, { allowed: true, layers: [] })
    })

    it('evaluates a text that is not saved: in place of its policy where that is attached, else with the others', async () => {
      const user = await app.user()
      const stored = await make(allow('actors:GetActor'))
      const base = { user_id: user.id, action: 'actors:DeleteActor', resource: 'srn:P:actor:a' }
      const ask = async (body: object) => (await app.admin.post('/policies/simulate', { ...base, ...body })).body
      const document = allow('actors:DeleteActor')
      const decided = (policy_id: string | null) => ({
        allowed: true,
        layers: [{ kind: 'user', id: user.id, decision: 'allow', policy_id, statement_index: 0 }],
      })
      assert.equal((await ask({})).allowed, false)
      assert.deepEqual(await ask({ document }), decided(null))
      assert.deepEqual(await ask({ document, policy_id: stored.id }), decided(stored.id))
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [stored.id] })
      assert.deepEqual(await ask({ document, policy_id: stored.id }), decided(stored.id))
      const reads = { action: 'actors:GetActor', policy_id: stored.id, document }
      assert.equal((await ask(reads)).allowed, false)
      assert.equal((await ask({ ...reads, policy_id: undefined })).allowed, true)
      assert.equal((await ask({})).allowed, false)
      const wrong = await ask({ document: allow('actors:Nothing') })
      assert.equal(wrong.error.meta.problems[0].path, 'document.statement[0].action[0]')
      assert.equal((await ask({ policy_id: stored.id })).error.code, 'VALIDATION_FAILED')
      for (const absent of [null, '', 0, false, []])
        assert.equal((await ask({ document: absent })).error?.code, 'VALIDATION_FAILED', JSON.stringify(absent))
    })

    it('evaluates an unsaved text for the admin gate of a key with policies', async () => {
      const project = await app.project()
      const policy = await make(allow('users:ListUsers'))
      const key = (await app.admin.post('/project-keys', { name: 'gate', policy_ids: [policy.id] })).body
      const base = { key_id: key.id, action: 'users:CreateUser', resource: 'srn:*:user:*' }
      const ask = async (body: object) => (await app.admin.post('/policies/simulate', { ...base, ...body })).body
      assert.equal((await ask({})).allowed, false)
      assert.equal((await ask({ document: allow('users:CreateUser') })).allowed, true)
      const bound = { name: 'bound', project_id: project.id, policy_ids: [policy.id] }
      const { id } = (await app.admin.post('/project-keys', bound)).body
      assert.equal((await ask({ key_id: id, document: allow('users:CreateUser') })).allowed, false)
    })

    it('evaluates an unsaved text as the first policy of a key', async () => {
      const { id } = (await app.admin.post('/project-keys', { name: 'all' })).body
      const base = { key_id: id, resource: 'srn:P:actor:a', document: allow('actors:GetActor') }
      const ask = async (action: string) => (await app.admin.post('/policies/simulate', { ...base, action })).body
      const layer = { kind: 'key', id, policy_id: null }
      assert.deepEqual(await ask('actors:GetActor'), {
        allowed: true,
        layers: [{ ...layer, decision: 'allow', statement_index: 0 }],
      })
      assert.deepEqual(await ask('actors:DeleteActor'), {
        allowed: false,
        layers: [{ ...layer, decision: 'none', statement_index: null }],
      })
    })

    it('is refused for other users, and for bodies without a subject', async () => {
      const user = await app.user()
      const admin = (await app.admin.get('/users/me')).body.id
      const question = { action: 'actors:GetActor', resource: 'srn:P:actor:a' }
      const ask = (body: object, by = app.admin) => by.post('/policies/simulate', body)
      assert.equal((await ask({ ...question, user_id: admin }, user)).status, 403)
      assert.equal((await ask({ ...question, user_id: 'user_missing' }, user)).status, 403)
      assert.equal((await ask({ ...question, user_id: 'user_missing' })).status, 404)
      for (const body of [
        question,
        { ...question, user_id: admin, key_id: 'k' },
        { ...question, user_id: admin, action: 'actors:Nothing' },
        { ...question, user_id: admin, action: '*' },
        { ...question, user_id: admin, resource: 'actor' },
      ])
        assert.equal((await ask(body)).status, 400, JSON.stringify(body))
    })
  })

  describe('GET /permissions', () => {
    it('pages over the catalogue for any caller, module by module', async () => {
      const user = await app.user()
      const { status, body } = await user.get('/permissions?limit=100')
      assert.equal(status, 200)
      const modules = body.data.map((entry: any) => entry.module)
      assert.equal(new Set(modules).size, modules.length)
      const users = body.data.find((entry: any) => entry.module === 'users')
      const create = users.actions.find((action: any) => action.action === 'users:CreateUser')
      assert.deepEqual([create.resource_type, create.gate, create.operation_ids], ['user', 'admin', ['createUser']])
      const formations = body.data.find((entry: any) => entry.module === 'formations')
      const plan = formations.actions.find((action: any) => action.action === 'formations:PlanFormation')
      assert.deepEqual(plan.operation_ids, ['planFormation', 'getFormationDrift'])
      assert.equal((await user.get('/permissions?limit=1&offset=1')).body.data[0].module, modules[1])
      assert.equal((await app.anonymous.get('/permissions')).status, 401)
    })
  })
})
