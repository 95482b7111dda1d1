import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { nodeExecutionQueue } from '#automation/orchestrations/runs/queue.ts'
import { sql, voidStatement } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import { claimMessages } from '#core/work/message-claims.ts'
import { startWorkers } from '#core/work/worker.ts'
import { CELL_COUNT, eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { startProcess } from '../support/processes.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, HOSTILE, openConsole, PASSWORD, pressEnter, violations } from './support.ts'

describe('views to operate a deployment', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'], { isAdmin: true })
  const { at, open, heading, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const project = () => suite.app.projectId
  const policy = (name: string, action: string[] = ['agents:GetAgent']) =>
    post('/policies', { name, document: { statement: [{ effect: 'Allow', action }] } })
  const turn = (prompt = 'hi') => post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt })
  const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true })
  const row = (page: Page, text: string) => page.getByRole('row').filter({ hasText: text })
  /** Presses a button by the keyboard. */
  const press = (page: Page, name: string) => pressEnter(button(page, name).first())
  /** Fails if axe finds something in the open page. */
  const accessible = async (page: Page) => assert.deepEqual(await violations(page), [])
  /** Opens a view of a user who may do these actions in the project. */
  const openAs = async (username: string, actions: string[], view: string) => {
    await suite.app.user(username, [allowing(project(), actions)])
    const watched = await openConsole(suite.chromium, suite.app, at(view), username)
    closeLater(watched)
    return watched
  }

  it('have no violation of WCAG 2.2 AA, and no sideways scrolling on a phone', async () => {
    await turn()
    const { id: policyId } = await policy('Readers')
    const { id: userId } = await suite.app.user('grace')
    await post('/secrets', { project_id: project(), name: 'CRM token', value: 'x' })
    await post('/project-keys', { project_id: project(), name: 'web', policy_ids: [policyId] })
    await post('/quotas', {
      project_id: project(),
      scope: 'project',
      metric: 'tokens',
      window: 'calendar_month',
      limit: 9_000_000,
    })
    const [entry] = (await suite.app.admin.get('/audit-log?action=quotas:CreateQuota')).body.data
    await suite.checkAccess([
      ['overview', 'Overview'],
      ['queue', 'Queue'],
      ['queue/turn.execute', 'turn.execute'],
      ['usage', 'Usage'],
      ['usage?tab=quotas', 'Usage'],
      ['usage?tab=prices', 'Usage'],
      ['keys', 'Keys'],
      ['secrets', 'Secrets'],
      ['policies', 'Policies'],
      [`policies/${policyId}`, 'Readers'],
      ['users', 'Users'],
      [`users/${userId}`, 'grace'],
      ['apps', 'Connected apps'],
      ['audit', 'Audit log'],
      [`audit/${entry.id}`, 'quotas:CreateQuota'],
      ['settings', 'Settings'],
      ['settings?tab=providers', 'Settings'],
      ['settings?tab=account', 'Settings'],
      ['settings?tab=deployment', 'Settings'],
    ])
  })

  it('show hostile text as text', async () => {
    const { id: policyId } = await policy(HOSTILE)
    const { id: userId } = await suite.app.user('mallory')
    await suite.app.admin.patch(`/users/${userId}`, { display_name: HOSTILE.slice(0, 100) })
    await post('/secrets', { project_id: project(), name: HOSTILE, value: 'x' })
    await post('/project-keys', { project_id: project(), name: HOSTILE, policy_ids: [policyId] })
    const agent = await post('/agents', {
      project_id: project(),
      name: HOSTILE,
      ai_provider_id: suite.app.providerId,
    })
    await post(`/agents/${agent.id}/generate?wait=true`, { prompt: 'hi' })
    await suite.app.admin.get('/users', { 'user-agent': HOSTILE.replace('\u202e', '') })
    await suite.app.admin.patch(
      `/projects/${project()}`,
      { description: 'x' },
      {
        'user-agent': HOSTILE.replace('\u202e', ''),
      },
    )
    const [entry] = (await suite.app.admin.get('/audit-log?action=projects:UpdateProject')).body.data
    await suite.checkHostileText([
      'keys',
      'secrets',
      'policies',
      `policies/${policyId}`,
      `users/${userId}`,
      `audit/${entry.id}`,
      'usage',
    ])
  })

  describe('the queue', () => {
    const message = (n: number, of = project()) =>
      queueMessage(nodeExecutionQueue, { execution_id: `orchnode_${n}`, run_id: `run_${n}`, project_id: of })
    const path = `queue/${nodeExecutionQueue.name}`

    it('says that there is no worker within 15 s after the only one is stopped', async () => {
      const worker = await startProcess('worker', suite.app.databaseUrl, {}, ['orchestration'])
      const { page, problems } = await open('queue?idle=1')
      const queue = row(page, nodeExecutionQueue.name)
      await queue.getByText(/^0 of \d+$/).waitFor()
      assert.equal(await queue.getByText('no worker').count(), 0)
      await worker.kill('SIGTERM')
      await queue.getByText('no worker').waitFor({ timeout: 15_000 })
      await suite.app.services.queues.send([message(1)])
      await queue.getByRole('link').click()
      await heading(page, nodeExecutionQueue.name)
      await row(page, 'Waiting').getByText('no worker').waitFor()
      assert.deepEqual(problems, [])
    })

    it('has no cells in a deployment without them', async function () {
      if (CELL_COUNT > 1) return this.skip()
      const { page, problems } = await open('start')
      const listed = page.waitForResponse('**/api/v1/system/cells**')
      await go(page, at('queue'))
      assert.equal((await (await listed).json()).total, 1)
      await page.getByRole('region', { name: 'Processes' }).waitFor()
      assert.equal(await page.getByRole('heading', { name: 'Cells' }).count(), 0)
      assert.deepEqual(problems, [])
    })

    it('says that a project is at its share', async () => {
      const { pool, queues } = suite.app.services
      await pool.query(voidStatement`
        insert into worker_heartbeats (instance_id, kinds, started_at, beat_at, version, queues)
        values ('tester', '{orchestration}', now(), now() + interval '1 minute', '1.0.0',
          ${JSON.stringify({ [nodeExecutionQueue.name]: { slots: 4, share: 1 } })}::jsonb)`)
      await queues.send([message(2), message(3)])
      const request = { limit: 1, last: '', held: new Map(), share: 4, borrow: 4 }
      await claimMessages(queues.db, nodeExecutionQueue, request)
      const { page, problems } = await open(`${path}?state=waiting`)
      await page.getByText('project at its share').first().waitFor()
      await go(page, at('queue'))
      await row(page, 'Atlas').getByText('1 of 1').waitFor()
      await pool.query(voidStatement`delete from worker_heartbeats where instance_id = 'tester'`)
      await pool.query(voidStatement`delete from pgboss.job_common where name = ${nodeExecutionQueue.name}`)
      assert.deepEqual(problems, [])
    })

    it('replays and drops dead letters, by mouse and by keyboard', async () => {
      const broken = handler(nodeExecutionQueue, {}, async (_, { retryIn }) => {
        retryIn(0)
        throw new Error('broken')
      })
      await suite.app.services.queues.send([message(4), message(5)])
      const workers = await startWorkers({
        services: suite.app.services,
        handlers: [broken],
        concurrency: 2,
        pollMs: 20,
      })
      const count = async () =>
        (await suite.app.admin.get(`/system/queues/${nodeExecutionQueue.name}/messages?state=dead`)).body.total
      await eventually(async () => (await count()) === 2)
      await workers.stop(1000)
      const { page, problems } = await open(`${path}?state=dead`)
      await page.getByText('broken').first().waitFor()
      await row(page, 'Dead letter').nth(1).waitFor()
      await button(page, 'Replay').first().click()
      await eventually(async () => (await count()) === 1)
      await row(page, 'Dead letter').nth(1).waitFor({ state: 'detached' })
      await press(page, 'Drop')
      await page.getByText('its work is never done').waitFor()
      await page.keyboard.press('Tab')
      await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Drop' }))
      await eventually(async () => (await count()) === 0)
      const audited = async () => (await suite.app.admin.get('/audit-log?action=system:ManageDeadLetters')).body.total
      await eventually(async () => (await audited()) === 2)
      await suite.app.pool.query(voidStatement`delete from pgboss.job_common where name = ${nodeExecutionQueue.name}`)
      assert.deepEqual(problems, [])
    })

    it('shows others the queue of their project, and requests nothing of the deployment', async () => {
      const { page, problems } = await openAs('cora', ['projects:*', 'orchestrations:*'], 'queue')
      const requested: string[] = []
      page.on('request', request => requested.push(new URL(request.url()).pathname))
      await page.getByText('Nothing waits').waitFor()
      assert.deepEqual(
        requested.filter(path => path.includes('/system/')),
        [],
      )
      assert.deepEqual(problems, [])
    })
  })

  it('chart usage with the same numbers as a table, and show what has no price until it gets one', async () => {
    await turn()
    const { page, problems } = await open('usage?measure=tokens')
    await page.locator('canvas').waitFor()
    const { totals } = (await suite.app.admin.get(`/usage/aggregate?project_id=${project()}`)).body
    await page.getByText(totals.input_tokens.toLocaleString('en-US'), { exact: true }).first().waitFor()
    const table = page.getByRole('table', { name: 'Tokens by day' })
    assert.equal(await table.getByRole('row').count(), 31)
    const unpriced = row(page, 'double-1')
    await unpriced.getByRole('button', { name: 'Add price' }).click()
    const dialog = page.getByRole('dialog')
    assert.equal(await dialog.getByLabel('Model').inputValue(), 'double-1')
    await dialog.getByLabel('Provider').fill('custom')
    await dialog.getByLabel('Unit price').fill('0.5')
    await page.keyboard.press('Enter')
    await page.getByText('The price is added').waitFor()
    await turn()
    const { cost_usd } = (await suite.app.admin.get(`/usage/aggregate?project_id=${project()}`)).body.totals
    assert.ok(cost_usd > 0)
    const downloaded = page.waitForEvent('download')
    await button(page, 'Export').click()
    assert.equal((await downloaded).suggestedFilename(), 'usage.ndjson')
    assert.deepEqual(problems, [])
  })

  it('show prices by tier and size of prompts, and change them', async () => {
    const price = { provider: 'custom', model: 'tiered', component: 'input_tokens', unit: 'token', unit_price: 0.25 }
    const prices = [
      { ...price, tier: 'priority' },
      { ...price, above_tokens: 200_000 },
      { ...price, effective_from: '2999-01-01T00:00:30Z' },
      price,
    ].map(each => ({ effective_from: '2026-01-01', ...each }))
    for (const each of prices) {
      const { status, body } = await suite.app.admin.put(`/projects/${project()}/prices`, { prices: [each] })
      assert.equal(status, 200, JSON.stringify(body))
    }
    const { page, problems } = await open('usage?tab=prices&model=tiered')
    const rowOf = (text: RegExp) =>
      page.getByRole('row').filter({ hasText: 'tiered' }).filter({ hasText: text }).first()
    for (const text of [/0\.25.*future/, /above 200,000 tokens/, /tier priority/]) await rowOf(text).waitFor()
    await accessible(page)
    await rowOf(/tier priority/)
      .getByRole('button', { name: 'Change price' })
      .click()
    const dialog = page.getByRole('dialog')
    assert.equal(await dialog.getByLabel('Tier').inputValue(), 'priority')
    await dialog.getByLabel('Unit price').fill('0.75')
    await page.keyboard.press('Enter')
    await page.getByText('The price is added').first().waitFor()
    await rowOf(/0\.75.*future/).waitFor()
    await dialog.waitFor({ state: 'detached' })
    await rowOf(/0\.25.*future/)
      .getByRole('button', { name: 'Change price' })
      .click()
    await dialog.getByLabel('Unit price').fill('0.5')
    await page.keyboard.press('Enter')
    await dialog.waitFor({ state: 'detached' })
    await rowOf(/0\.50?\D.*future/).waitFor()
    const { data } = (await suite.app.admin.get(`/projects/${project()}/prices?model=tiered`)).body
    assert.deepEqual(
      data.map(({ tier, above_tokens, unit_price }: any) => JSON.stringify([tier, above_tokens, unit_price])).sort(),
      ['["priority",null,0.25]', '["priority",null,0.75]', '[null,200000,0.25]', '[null,null,0.25]', '[null,null,0.5]'],
    )
    assert.deepEqual(problems, [])
  })

  it('report usage by component, service tier and served model', async () => {
    await turn()
    const { page, problems } = await open('usage?by=served_model')
    await page.getByRole('heading', { name: 'By served model' }).waitFor()
    const components = page.getByRole('table', { name: 'By component' })
    await components.getByRole('row').filter({ hasText: 'input_tokens' }).first().waitFor()
    await page.getByLabel('By', { exact: true }).first().click()
    await page.getByRole('option', { name: 'By service tier' }).click()
    await page.getByRole('heading', { name: 'By service tier' }).waitFor()
    assert.deepEqual(problems, [])
  })

  it('create, edit and delete a quota by the keyboard, and show how much of it is used', async () => {
    const { page, problems } = await open('usage?tab=quotas')
    const quotas = async () =>
      (await suite.app.admin.get(`/quotas?project_id=${project()}&metric=requests`)).body.data as { limit: number }[]
    await press(page, 'New quota')
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Limit').waitFor()
    await accessible(page)
    const metric = dialog.getByRole('combobox', { name: 'Metric' })
    await metric.fill('Requests')
    await page.getByRole('option').nth(1).waitFor({ state: 'detached' })
    await metric.press('ArrowDown')
    await metric.press('Enter')
    assert.equal(await metric.inputValue(), 'Requests')
    await dialog.getByLabel('Limit').fill('40')
    await dialog.getByLabel('Limit').press('Enter')
    await row(page, 'Requests').getByText('0 of 40').waitFor()
    await pressEnter(row(page, 'Requests').getByRole('button', { name: 'Edit' }))
    await dialog.getByLabel('Limit').fill('80')
    await dialog.getByLabel('Limit').press('Enter')
    await row(page, 'Requests').getByText('0 of 80').waitFor()
    assert.deepEqual(
      (await quotas()).map(({ limit }) => limit),
      [80],
    )
    await pressEnter(row(page, 'Requests').getByRole('button', { name: 'Delete' }))
    await pressEnter(dialog.getByRole('button', { name: 'Delete' }))
    await eventually(async () => (await quotas()).length === 0)
    assert.deepEqual(problems, [])
  })

  it('create a key by the keyboard, show it once, rotate and revoke it', async () => {
    const { page, problems } = await open('keys')
    await press(page, 'New key')
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name').fill('by keyboard')
    await page.keyboard.press('Enter')
    const secret = (await dialog.locator('pre').innerText()).trim()
    await accessible(page)
    assert.equal((await suite.app.as(secret).get('/users/me')).status, 200)
    await press(page, 'I have copied it')
    const found = row(page, 'by keyboard')
    await found.getByText('As its owner').waitFor()
    assert.ok(!(await page.content()).includes(secret))
    await found.getByRole('button', { name: 'Rotate' }).click()
    await dialog.getByRole('button', { name: 'Rotate' }).click()
    const next = (await dialog.locator('pre').innerText()).trim()
    assert.equal((await suite.app.as(secret).get('/users/me')).status, 401)
    assert.equal((await suite.app.as(next).get('/users/me')).status, 200)
    await page.keyboard.press('Escape')
    await found.getByRole('button', { name: 'Revoke' }).click()
    await dialog.getByRole('button', { name: 'Revoke' }).click()
    await found.waitFor({ state: 'detached' })
    assert.equal((await suite.app.as(next).get('/users/me')).status, 401)
    assert.deepEqual(problems, [])
  })

  it('write secrets, and never show their values; without the permission nothing of them is requested', async () => {
    const { page, problems } = await open('secrets')
    await press(page, 'New secret')
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name').fill('Payment key')
    await dialog.getByLabel('Value', { exact: true }).fill('never shown again')
    await page.keyboard.press('Enter')
    await row(page, 'Payment key').getByText('Set').waitFor()
    assert.ok(!(await page.content()).includes('never shown again'))
    await row(page, 'Payment key').getByRole('button', { name: 'Delete' }).click()
    await dialog.getByRole('button', { name: 'Delete' }).click()
    await row(page, 'Payment key').waitFor({ state: 'detached' })
    assert.deepEqual(problems, [])

    const other = await openAs('dan', ['projects:*', 'agents:*'], 'agents')
    const requested: string[] = []
    other.page.on('request', request => requested.push(new URL(request.url()).pathname))
    await other.page.getByRole('link', { name: 'Helper' }).waitFor()
    assert.equal(await other.page.getByRole('navigation').getByRole('link', { name: 'Secrets' }).count(), 0)
    await go(other.page, at('secrets'))
    await other.page.getByText('secrets:ListSecrets').waitFor()
    assert.deepEqual(
      requested.filter(path => path.startsWith('/api/v1/secrets')),
      [],
    )
  })

  it('complete actions in a policy, simulate it before it is saved, and name the statement that decides', async () => {
    const { id } = await suite.app.user('erin')
    const { page, problems } = await open('policies/new')
    await page.getByLabel('Name').fill('Quota readers')
    const text = page.getByLabel('Statements as JSON')
    await text.fill('{"statement": [{"effect": "Allow", "action": ["quotas:Get')
    await text.pressSequentially('Q')
    await page
      .getByRole('option', { name: /quotas:GetQuota/ })
      .first()
      .waitFor()
    await accessible(page)
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    await page.keyboard.type('"]}]}')
    assert.equal(await text.inputValue(), '{"statement": [{"effect": "Allow", "action": ["quotas:GetQuota"]}]}')
    const choose = async (name: string, value: string) => {
      await page.getByRole('combobox', { name }).fill(value)
      await page.getByRole('option', { name: value, exact: true }).click()
    }
    await choose('Who', 'erin')
    await choose('Action', 'quotas:GetQuota')
    await page.getByRole('button', { name: 'Simulate a request' }).click()
    await page.getByText('Allows: statement 1 of this text').waitFor()
    await accessible(page)
    assert.equal((await suite.app.admin.get(`/users/${id}/policies`)).body.total, 0)
    await choose('Action', 'quotas:DeleteQuota')
    await page.getByRole('button', { name: 'Simulate a request' }).click()
    await page.getByText('No statement matches').waitFor()
    await press(page, 'Create')
    await heading(page, 'Quota readers')
    await text.fill('{"statement": [{"effect": "Allow", "action": ["quotas:Nothing"]}]}')
    await press(page, 'Save')
    await page.getByRole('alert').getByText('document.statement[0].action[0]', { exact: true }).waitFor()
    assert.deepEqual(
      problems.filter(problem => !problem.includes('status of 400')),
      [],
    )
  })

  it('show both changes where two people edit a policy', async () => {
    const { id } = await policy('Shared')
    const { page } = await open(`policies/${id}`)
    await page.getByLabel('Description').fill('mine')
    await suite.app.admin.patch(`/policies/${id}`, { description: 'theirs' })
    await press(page, 'Save')
    const dialog = page.getByRole('dialog', { name: 'Another person has changed this policy' })
    await dialog.getByText('"theirs"').waitFor()
    await dialog.getByText('"mine"').waitFor()
    await dialog.getByRole('button', { name: 'Save mine' }).click()
    await page.getByText('The policy is saved').waitFor()
    assert.equal((await suite.app.admin.get(`/policies/${id}`)).body.description, 'mine')
  })

  it('create a user, attach a policy, and disable the user', async () => {
    await policy('Triage')
    const { page, problems } = await open('users')
    await press(page, 'New user')
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Username').fill('frank')
    await dialog.getByRole('textbox', { name: 'Password' }).fill(PASSWORD)
    await page.keyboard.press('Enter')
    await heading(page, 'frank')
    const policies = page.getByRole('combobox', { name: 'Policies' })
    await policies.fill('Triage')
    await page.getByRole('option', { name: 'Triage' }).click()
    await press(page, 'Save')
    await page.getByText('The policies are saved').waitFor()
    await button(page, 'Disable').click()
    await dialog.getByRole('button', { name: 'Disable' }).click()
    await button(page, 'Enable').waitFor()
    const [user] = (await suite.app.admin.get('/users?username=frank')).body.data
    assert.equal(user.policy_ids.length, 1)
    assert.ok(user.disabled_at)
    assert.deepEqual(problems, [])
  })

  it('filter the audit log, open an entry, verify the chain, and name the first broken entry', async () => {
    await post('/quotas', {
      project_id: project(),
      scope: 'agent',
      scope_ref: suite.app.agentId,
      metric: 'tokens',
      window: 'rolling_1h',
      limit: 7_000_000,
    })
    const { page, problems } = await open('audit?action=quotas:CreateQuota')
    await page.getByRole('link', { name: 'quotas:CreateQuota' }).first().waitFor()
    assert.equal(await page.getByRole('link', { name: 'agents:CreateAgent' }).count(), 0)
    await press(page, 'Verify')
    await page.getByText('The log is intact').waitFor()
    const [{ id }] = (await suite.app.admin.get('/audit-log?action=quotas:CreateQuota')).body.data
    await suite.app.services.pool.transaction(async tx => {
      await tx.query(sql.unsafe`set local session_replication_role = replica`)
      await tx.query(sql.unsafe`update audit_entries set status = 500 where id = ${id}`)
    })
    await press(page, 'Verify')
    await page.getByText('The log was changed').waitFor()
    await accessible(page)
    await page.getByRole('status').getByRole('link', { name: id }).click()
    await heading(page, 'quotas:CreateQuota')
    await page.getByText('500').waitFor()
    assert.deepEqual(problems, [])
  })

  it('change the project, check a provider, and show settings of the deployment without secrets', async () => {
    const { page, problems } = await open('settings')
    const general = page.getByRole('region', { name: 'General' })
    await general.getByLabel('Description').fill('Answers customers')
    await pressEnter(general.getByRole('button', { name: 'Save' }))
    await page.getByText('The settings are saved').waitFor()
    const { body } = await suite.app.admin.get(`/projects/${project()}`)
    assert.deepEqual([body.description, body.name], ['Answers customers', 'Atlas'])
    await go(page, at('settings?tab=providers'))
    await button(page, 'Check').click()
    await page.getByText(/^Answered in \d+ ms$/).waitFor()
    await go(page, at('settings?tab=deployment&q=JWT_SECRET'))
    await page.getByText('secret, set').waitFor()
    assert.ok(!(await page.content()).includes(suite.app.config.JWT_SECRET))
    assert.deepEqual(problems, [])
  })

  it('change the own password, which ends the sign-in', async () => {
    const { page } = await openAs('gwen', ['projects:*'], 'settings?tab=account')
    await page.getByLabel('Current password').fill(PASSWORD)
    await page.getByLabel('New password').fill('an even finer password')
    await page.getByLabel('Repeat the password').fill('an even finer password')
    await page.keyboard.press('Enter')
    await page.getByText('You are signed out.').waitFor()
    const signIn = (password: string) => suite.app.anonymous.post('/users/login', { username: 'gwen', password })
    assert.equal((await signIn(PASSWORD)).status, 401)
    assert.equal((await signIn('an even finer password')).status, 200)
  })

  it('list what users granted to applications, and revoke it', async () => {
    const watched = await openAs('hugo', ['projects:*'], 'apps')
    await watched.page.getByText('Muster console').waitFor()
    const { page, problems } = await open('apps')
    await row(page, 'hugo').getByRole('button', { name: 'Revoke' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click()
    await row(page, 'hugo').waitFor({ state: 'detached' })
    await go(watched.page, at('settings'))
    await watched.page.getByText('Your sign-in has ended').waitFor()
    assert.deepEqual(problems, [])
  })
})
