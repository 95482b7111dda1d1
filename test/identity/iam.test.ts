import assert from 'node:assert/strict'
import { ADMIN, type Client, client, eventually, startApp, type TestApp } from '../support/app.ts'
import { type HostedProcess, runWeb } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'

type Project = Awaited<ReturnType<TestApp['project']>>

const statement = (effect: 'Allow' | 'Deny', action: string[], resource?: string[], condition?: object) => ({
  effect,
  action,
  ...(resource ? { resource } : {}),
  ...(condition ? { condition } : {}),
})
const MISSING = 'actor_00000000000000000000000000'

describe('permissions on the wire', () => {
  const app = forSuite(startApp)
  const p = forSuite(() => app.project())
  const q = forSuite(() => app.project())

  const actor = async (project: Project, tags?: Record<string, string>): Promise<string> => {
    const made = await app.admin.post('/actors', { project_id: project.id, name: 'x' })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    if (tags) assert.equal((await app.admin.put(`/actors/${made.body.id}/tags`, tags)).status, 200)
    return made.body.id
  }
  const ids = (reply: { body: any }) => reply.body.data.map((row: { id: string }) => row.id)

  it('on one resource show it, refuse its neighbours and hide other projects', async () => {
    const [a, b, elsewhere] = [await actor(p), await actor(p), await actor(q)]
    const user = await app.user(undefined, [
      { statement: [statement('Allow', ['actors:GetActor'], [`srn:${p.id}:actor:${a}`])] },
    ])
    assert.equal((await user.get(`/actors/${a}`)).status, 200)
    const neighbour = await user.get(`/actors/${b}`)
    assert.equal(neighbour.status, 403)
    assert.deepEqual(neighbour.body.error.meta, { action: 'actors:GetActor' })
    assert.equal((await user.get(`/actors/${elsewhere}`)).status, 404)
    assert.equal((await user.get(`/actors/${MISSING}`)).status, 404)
  })

  it('of a user without policies refuse existing and missing ids alike', async () => {
    const existing = await actor(p)
    const user = await app.user()
    const replies = [await user.get(`/actors/${existing}`), await user.get(`/actors/${MISSING}`)]
    for (const reply of replies) assert.equal(reply.status, 403)
    assert.deepEqual(replies[0].body, replies[1].body)
  })

  it('are denied by a Deny in any position', async () => {
    const id = await actor(p)
    const allow = statement('Allow', ['actors:*'])
    const deny = statement('Deny', ['actors:DeleteActor'], [`srn:${p.id}:actor:*`])
    for (const policies of [
      [{ statement: [allow, deny] }],
      [{ statement: [deny, allow] }],
      [{ statement: [deny] }, { statement: [allow] }],
      [{ statement: [allow] }, { statement: [deny] }],
    ]) {
      const user = await app.user(undefined, policies)
      assert.equal((await user.get(`/actors/${id}`)).status, 200)
      assert.equal((await user.delete(`/actors/${id}`)).status, 403)
    }
  })

  it('on one project list its rows only and refuse naming another, existing or not', async () => {
    const [here, there] = [await actor(p), await actor(q)]
    const user = await app.user(undefined, [{ statement: [statement('Allow', ['*'], [`srn:${p.id}:*:*`])] }])
    const all = await user.get('/actors?limit=100')
    assert.equal(all.status, 200)
    assert.ok(ids(all).includes(here) && !ids(all).includes(there))
    assert.equal(all.body.total, (await app.admin.get(`/actors?project_id=${p.id}`)).body.total)
    const named = await user.get(`/actors?project_id=${q.id}`)
    const unknown = await user.get('/actors?project_id=nonexistent')
    assert.deepEqual([named.status, unknown.status], [403, 403])
    assert.deepEqual(named.body, unknown.body)
    assert.equal((await app.admin.get('/actors?project_id=nonexistent')).status, 404)
  })

  describe('by tags', () => {
    const tagged = forSuite(() => app.project())

    it('open what carries the tag in reads and lists, and no create without it', async () => {
      const internal = await actor(tagged, { visibility: 'internal' })
      const open = await actor(tagged)
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['actors:*'], [`srn:${tagged.id}:actor:*`], {
              StringEquals: { 'svc:ResourceTag/visibility': 'internal' },
            }),
          ],
        },
      ])
      assert.equal((await user.get(`/actors/${internal}`)).status, 200)
      assert.equal((await user.get(`/actors/${open}`)).status, 403)
      const list = await user.get('/actors')
      assert.deepEqual([ids(list), list.body.total], [[internal], 1])
      assert.equal((await user.post('/actors', { project_id: tagged.id, name: 'n' })).status, 403)
    })

    it('cannot be tagged out of or into', async () => {
      const id = await actor(tagged, { visibility: 'internal' })
      const outside = await actor(tagged, { visibility: 'public' })
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['actors:*'], undefined, { StringEquals: { 'svc:ResourceTag/visibility': 'internal' } }),
          ],
        },
      ])
      assert.equal((await user.patch(`/actors/${id}`, { tags: { visibility: 'public' } })).status, 403)
      assert.equal((await user.patch(`/actors/${outside}`, { tags: { visibility: 'internal' } })).status, 403)
      assert.deepEqual((await app.admin.get(`/actors/${id}`)).body.tags, { visibility: 'internal' })
      assert.equal((await user.patch(`/actors/${id}`, { tags: { visibility: 'internal', more: 'x' } })).status, 200)
    })

    it('require a tag in the body of a create and of a tag write', async () => {
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['conversations:*'], [`srn:${tagged.id}:conversation:*`]),
            statement('Deny', ['conversations:CreateConversation', 'conversations:UpdateConversation'], undefined, {
              StringNotEquals: { 'svc:RequestTag/team': 'red' },
            }),
          ],
        },
      ])
      const body = { project_id: tagged.id }
      for (const tags of [undefined, {}, { team: 'blue' }, { Team: 'red' }])
        assert.equal((await user.post('/conversations', { ...body, tags })).status, 403, JSON.stringify(tags))
      const made = await user.post('/conversations', { ...body, tags: { team: 'red' } })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const path = `/conversations/${made.body.id}/tags`
      assert.equal((await user.put(path, { team: 'blue' })).status, 403)
      assert.equal((await user.patch(path, { more: 'x' })).status, 403)
      assert.equal((await user.patch(path, { team: 'red', more: 'x' })).status, 200)
      assert.deepEqual((await user.get(path)).body, { team: 'red', more: 'x' })
    })

    it('distinguish credentials and principals', async () => {
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['actors:*'], [`srn:${tagged.id}:actor:*`]),
            statement('Deny', ['actors:*'], undefined, { StringEquals: { 'svc:CredentialType': 'api_key' } }),
          ],
        },
      ])
      const key = app.as((await user.post('/project-keys', { project_id: tagged.id })).body.secret)
      assert.equal((await user.get('/actors')).status, 200)
      assert.equal((await key.post('/actors', { name: 'n' })).status, 403)
      assert.equal((await key.get('/actors')).status, 403)
    })

    it('leave untagged rows to a Deny on a tag, and the total agrees', async () => {
      const project = await app.project()
      const [finance, sales, bare] = [
        await actor(project, { team: 'finance' }),
        await actor(project, { team: 'sales' }),
        await actor(project),
      ]
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['*']),
            statement('Deny', ['*'], undefined, { StringEquals: { 'svc:ResourceTag/team': 'finance' } }),
          ],
        },
      ])
      const list = await user.get(`/actors?project_id=${project.id}`)
      assert.deepEqual([ids(list).sort(), list.body.total], [[sales, bare].sort(), 2])
      assert.equal((await user.get(`/actors/${finance}`)).status, 403)
    })

    it('distinguish cost_center and costCenter', async () => {
      const project = await app.project()
      const [snake, camel] = [await actor(project, { cost_center: '7' }), await actor(project, { costCenter: '7' })]
      const user = await app.user(undefined, [
        {
          statement: [
            statement('Allow', ['actors:*'], undefined, { StringEquals: { 'svc:ResourceTag/cost_center': '7' } }),
          ],
        },
      ])
      assert.equal((await user.get(`/actors/${snake}`)).status, 200)
      assert.equal((await user.get(`/actors/${camel}`)).status, 403)
    })
  })

  it('are decided before the body is read', async () => {
    const id = await actor(p)
    const user = await app.user(undefined, [{ statement: [statement('Allow', ['actors:GetActor'])] }])
    assert.equal((await user.patch(`/actors/${id}`, { nonsense: 1 })).status, 403)
    assert.equal((await user.post('/actors', { project_id: p.id, nonsense: 1 })).status, 403)
    assert.equal((await user.post('/users', { nonsense: 1 })).status, 403)
  })

  describe('of the admin gate', () => {
    it('require an admin and an unbound credential', async () => {
      const user = { username: 'made', password: 'a fine password' }
      for (const path of ['/users', '/projects', '/policies'])
        assert.equal((await p.key.post(path, { ...user, name: 'x' })).status, 403, path)
      const unbound = app.as((await app.admin.post('/project-keys', {})).body.secret)
      assert.equal((await unbound.post('/users', user)).status, 201)
    })

    it('follow the policies of an unscoped admin key on the global name', async () => {
      const document = {
        statement: [
          statement('Allow', ['users:ListUsers', 'users:GetUser'], ['srn:*:user:*']),
          statement('Deny', ['users:GetUser'], ['srn:*:user:user_11111111111111111111111111']),
        ],
      }
      const policy = (await app.admin.post('/policies', { document })).body
      assert.ok(policy.id, JSON.stringify(policy))
      const key = app.as((await app.admin.post('/project-keys', { policy_ids: [policy.id] })).body.secret)
      const other = await app.user()
      assert.equal((await key.get('/users')).status, 200)
      assert.equal((await key.get(`/users/${other.id}`)).status, 200)
      assert.equal((await key.get('/users/user_11111111111111111111111111')).status, 403)
      assert.equal((await key.post('/users', { username: 'no', password: 'a fine password' })).status, 403)
      assert.equal((await key.delete(`/users/${other.id}`)).status, 403)
    })
  })

  describe('across processes', () => {
    let processes: HostedProcess[]
    before(async () => {
      processes = await Promise.all([runWeb(app.databaseUrl), runWeb(app.databaseUrl)])
    })
    after(() => Promise.all((processes ?? []).map(process => process.stop())))

    /** Warms both processes, makes a change in the first and sees the second follow. */
    async function changed(
      token: string,
      path: string,
      warm: number,
      change: (admin: Client) => Promise<unknown>,
      cold: number,
    ) {
      const [first, second] = processes.map(({ url }) => client(url, token))
      for (let round = 0; round < 3; round++)
        for (const one of [first, second]) assert.equal((await one.get(path)).status, warm)
      await change(client(processes[0].url, app.admin.token))
      assert.equal(
        (await first.get(path)).status,
        cold,
        'the process that made the change follows with the next request',
      )
      // By notification: without one, the cache entry would live for five seconds.
      await eventually(async () => (await second.get(path)).status === cold, { within: 4000, every: 5 })
    }

    it('a policy edited to deny applies within a second', async () => {
      const id = await actor(p)
      const user = await app.user(undefined, [{ statement: [statement('Allow', ['actors:*'])] }])
      const policy = (await app.admin.get(`/users/${user.id}`)).body.policy_ids[0]
      const document = { statement: [statement('Deny', ['actors:*'])] }
      await changed(
        user.token as string,
        `/actors/${id}`,
        200,
        admin => admin.put(`/policies/${policy}`, { document }),
        403,
      )
    })

    it('deleting a key and detaching its policies apply within a second', async () => {
      const id = await actor(p)
      const user = await app.user(undefined, [{ statement: [statement('Allow', ['actors:*'])] }])
      const key = (await user.post('/project-keys', {})).body
      await changed(
        key.secret,
        `/actors/${id}`,
        200,
        admin => admin.put(`/users/${user.id}/policies`, { policy_ids: [] }),
        403,
      )
      await changed(key.secret, '/users/me', 200, admin => admin.delete(`/project-keys/${key.id}`), 401)
    })

    it('demoting an admin applies within a second', async () => {
      const credentials = { username: 'shortly', password: 'a fine password' }
      const made = (await app.admin.post('/users', { ...credentials, role: 'admin' })).body
      const signedIn = app.as((await app.anonymous.post('/users/login', credentials)).body.token)
      const key = (await signedIn.post('/project-keys', {})).body
      await changed(key.secret, '/users', 200, admin => admin.patch(`/users/${made.id}`, { role: 'user' }), 403)
      assert.equal((await client(processes[1].url, signedIn.token).get('/users/me')).status, 401)
    })

    it('tokens are valid in every process with the same secret, and managed policies exist', async () => {
      const admin = client(processes[1].url, app.admin.token)
      assert.equal((await admin.get('/users/me')).body.username, ADMIN.username)
      assert.equal((await admin.get('/policies?name=read only')).body.total, 1)
    })
  })
})
