import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import type { Client } from '../support/app.ts'
import { allowing, REDIRECT, register, startOauthApp, tokensOf } from '../support/oauth.ts'
import { bodyOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** The fields that a narrower credential of a user reads about the user, through operations that check the user only. */
describe('credentials that are narrower than their user', function () {
  this.timeout(120_000)
  const app = forSuite(startOauthApp)
  let user: Client & { id: string }
  /** The credentials may act in `here`; the user in both projects. */
  let here: string
  let elsewhere: string
  let callers: Record<string, Client>
  let params: Record<string, string>

  before(async () => {
    here = (await bodyOf(app.admin.post('/projects', { name: 'here' }))).id
    elsewhere = (await bodyOf(app.admin.post('/projects', { name: 'elsewhere' }))).id
    user = await app.user(undefined, [allowing(here), allowing(elsewhere)])
    for (const project_id of [here, elsewhere]) {
      const fields = { name: `of ${project_id}`, type: 'platform', actions: ['list-secrets'] }
      await bodyOf(user.post('/tools', { project_id, ...fields }))
      await bodyOf(user.post('/guardrails', { project_id, name: `of ${project_id}`, document: { class: 'A' } }))
    }
    const reading = { statement: [{ effect: 'Allow', action: ['secrets:ListSecrets'], resource: [`srn:${here}:*:*`] }] }
    const policy_ids = [(await bodyOf(app.admin.post('/policies', { document: reading }))).id]
    const keyElsewhere = await bodyOf(user.post('/project-keys', { project_id: elsewhere, name: `of ${elsewhere}` }))
    const bound = await bodyOf(user.post('/project-keys', { project_id: here, policy_ids }))
    const unbound = await bodyOf(user.post('/project-keys', { policy_ids }))
    const { client_id } = await register(app.base)
    const consent = { project_id: here, selection: { kind: 'read' } }
    const tokens = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user, consent })
    const [grant] = (await user.get(`/oauth/grants?client_id=${client_id}&limit=1`)).body.data
    callers = {
      'a project key with one policy': app.as(bound.secret),
      'an unbound key with one policy': app.as(unbound.secret),
      'an OAuth grant that reads': app.as(tokens.access_token),
    }
    params = { user_id: user.id, key_id: keyElsewhere.id, grant_id: grant.id }
  })

  for (const name of ['a project key with one policy', 'an unbound key with one policy', 'an OAuth grant that reads'])
    it(`reads nothing of another project as ${name}`, async () => {
      const leaks: string[] = []
      for (const { id, gate, path, method } of operations.all()) {
        if (method !== 'get' || (gate !== 'any' && gate !== 'owner')) continue
        const url = path.replace('/api/v1', '').replace(/\{(\w+)\}/g, (_match, param) => params[param] ?? 'x')
        const { status, body } = await callers[name].get(url)
        const text = JSON.stringify(body)
        if (status < 300 && text.includes(elsewhere)) leaks.push(`${id}: ${text.slice(0, 300)}`)
      }
      assert.deepEqual(leaks, [])
    })

  it('lists the authored definitions of its project, and all of them as the user', async () => {
    const listed = async (by: Client) => {
      const { data, total } = await bodyOf(by.get(`/users/${user.id}/authored`))
      assert.equal(data.length, total)
      return data.map(({ kind, project_id }: any) => `${kind} ${project_id === here ? 'here' : 'elsewhere'}`)
    }
    for (const [name, caller] of Object.entries(callers))
      assert.deepEqual(await listed(caller), ['guardrail here', 'tool here'], name)
    assert.equal((await listed(user)).length, 4)
    assert.equal((await listed(app.admin)).length, 4)
  })

  it('reads no policy of its user, which the user, an unrestricted key and an admin do', async () => {
    const path = `/users/${user.id}/policies`
    for (const [name, caller] of Object.entries(callers)) {
      const { status, body } = await caller.get(path)
      assert.deepEqual(
        [status, body.error?.code, body.error?.meta],
        [403, 'FORBIDDEN', { action: 'users:GetUser' }],
        name,
      )
    }
    const whole = await bodyOf(user.post('/project-keys', {}))
    for (const by of [user, app.as(whole.secret), app.admin]) assert.equal((await bodyOf(by.get(path))).total, 2)
  })
})
