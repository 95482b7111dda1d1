import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { sql } from '../../src/core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { consoleSuite, go } from './support.ts'

describe('the console for automation', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'delivery', 'orchestration', 'trigger'])
  const { at, open, heading } = suite
  let receiver: Receiver

  before(async () => {
    receiver = await startReceiver()
  })
  after(async () => await receiver?.close())
  beforeEach(() => {
    receiver.requests.length = 0
    receiver.answer = 200
  })

  const post = async (path: string, body: object = {}) => {
    const made = await suite.app.admin.post(path, body)
    assert.ok(made.status < 300, `${path} ${JSON.stringify(made.body)}`)
    return made.body
  }
  const create = async (path: string, body: object) => await post(path, { project_id: suite.app.projectId, ...body })
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  /** Moves the focus to a button or link and activates it with the keyboard. */
  const press = async (page: Page, name: string | RegExp, role: 'button' | 'link' = 'button') => {
    await page.getByRole(role, { name, exact: true }).last().focus()
    await page.keyboard.press('Enter')
  }

  describe('webhooks', () => {
    const hook = async (fields: object = {}) =>
      await create('/webhooks', { name: 'Desk', url: receiver.url, events: ['secrets.*'], ...fields })
    const secret = async () => await create('/secrets', { name: `s${Math.random()}`, value: 'x' })

    it('are created, tested and redelivered with the keyboard alone', async () => {
      const { page, problems } = await open('webhooks')
      await page.getByText('No webhook yet').waitFor()
      await press(page, 'New webhook')
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Name').waitFor()
      await page.keyboard.type('By keys')
      await page.keyboard.press('Tab')
      await page.keyboard.type(receiver.url)
      await page.keyboard.press('Tab')
      await page.keyboard.type('secrets.*')
      await page.keyboard.press('Enter')
      await page.keyboard.press('Shift+Tab')
      await page.keyboard.press('Enter')
      const shown = await dialog.locator('pre').innerText()
      assert.match(shown, /^whsec_/)
      await press(page, 'I have copied it')
      await heading(page, 'By keys')
      assert.ok(!(await page.content()).includes(shown))
      await press(page, 'Send test event')
      await page.getByText('A test event is on its way').waitFor()
      await page.getByRole('row', { name: /webhooks.test Completed 200 1/ }).waitFor()
      await press(page, 'webhooks.test', 'link')
      await page.getByText('answered').waitFor()
      await press(page, 'Redeliver')
      await page.getByRole('link', { name: /^whd_/ }).waitFor()
      await eventually(() => receiver.requests.length === 2)
      assert.equal(receiver.requests[0].body, receiver.requests[1].body)
      assert.deepEqual(problems, [])
    })

    it('show what an event became at each of them', async () => {
      const deny = { statement: [{ effect: 'Deny', action: ['*'], resource: ['*'] }] }
      const { id: policy_id } = await create('/policies', { project_id: undefined, name: 'none', document: deny })
      await hook({ name: 'subscribed' })
      await hook({ name: 'off', active: false })
      await hook({ name: 'elsewhere', events: ['files.*'] })
      await hook({ name: 'refused', policy_id })
      const { id } = await secret()
      await hook({ name: 'newer' })
      await eventually(() => receiver.requests.length >= 1)
      const { page, problems } = await open(`events?name=secrets&resource_id=${id}`)
      await page.getByRole('link', { name: 'secrets.created' }).click()
      for (const [name, outcome] of [
        ['subscribed', 'Delivered'],
        ['off', 'Inactive'],
        ['elsewhere', 'Not subscribed'],
        ['refused', 'Denied by its policy'],
        ['newer', 'Created later'],
      ])
        await page.getByRole('row', { name: new RegExp(`^${name} ${outcome}`) }).waitFor()
      await page
        .getByRole('row', { name: /^newer/ })
        .getByRole('button', { name: 'Send' })
        .click()
      await page.getByRole('dialog').getByRole('button', { name: 'Send' }).click()
      await page.getByRole('row', { name: /^newer (Queued|Delivered)/ }).waitFor()
      assert.deepEqual(problems, [])
    })

    it('count what passed them while inactive, are activated, and redeliver what failed', async () => {
      receiver.answer = 500
      const { id } = await hook({ name: 'Resting' })
      await secret()
      await eventually(async () => (await read(`/webhook-deliveries?webhook_id=${id}&status=failed`)).total === 1)
      receiver.answer = 200
      const { page, problems } = await open(`webhooks/${id}`)
      await page.getByRole('row', { name: /secrets.created Failed 500 3/ }).waitFor()
      await page.getByRole('button', { name: 'Deactivate' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Deactivate' }).click()
      await page.getByText('This webhook is inactive').waitFor()
      for (let made = 0; made < 3; made++) await secret()
      await go(page, at('webhooks?active=false'))
      await page.getByRole('row', { name: /Resting .* Inactive 3 events passed/ }).waitFor()
      await page.getByRole('link', { name: 'Resting' }).click()
      await page.getByText(/3 matching events passed it by/).waitFor()
      await page.getByRole('button', { name: 'Activate' }).click()
      await page.getByText('This webhook is inactive').waitFor({ state: 'detached' })
      await page.getByRole('button', { name: 'Redeliver several' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Redeliver' }).click()
      await page.getByText('1 delivery queued').waitFor()
      await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click()
      await page.getByRole('row', { name: /secrets.created Redelivery Completed 200 1/ }).waitFor()
      assert.deepEqual(problems, [])
    })

    it('check the signature of a request that was received', async () => {
      const { id } = await hook({ name: 'Signed', url: `${receiver.url}/signed` })
      await secret()
      const { body, headers } = await eventually(() => receiver.requests.find(({ path }) => path.endsWith('/signed')))
      const { page, problems } = await open(`webhooks/${id}?tab=signature`)
      await page.getByRole('button', { name: 'Use the stored secret' }).click()
      await eventually(async () => (await page.getByLabel('Secret').inputValue()).startsWith('whsec_'))
      await page.getByLabel('X-Svc-Signature').fill(String(headers['x-svc-signature']))
      await page.getByLabel('Body').fill(body)
      await page.getByRole('button', { name: 'Check a signature' }).click()
      await page.getByText('The signature is valid.').waitFor()
      await page.getByLabel('Body').fill(body.replace('secrets.created', 'secrets.deleted'))
      await page.getByRole('button', { name: 'Check a signature' }).click()
      await page.getByText('The signature does not belong to this body and secret.').waitFor()
      assert.deepEqual(problems, [])
    })
  })

  describe('the inbox', () => {
    /** Starts work that waits for a person in each way, and returns what reads its state. */
    const waiting = async () => {
      const graph = await create('/orchestrations', {
        name: `ask ${Math.random()}`,
        nodes: [{ id: 'ask', type: 'human', prompt: 'May this be refunded?', options: ['yes', 'no'] }],
        edges: [],
      })
      const run = await create('/orchestration-runs', { orchestration_id: graph.id, wait: false })
      const playbook = await create('/playbooks', {
        name: `Returns ${Math.random()}`,
        steps: [
          {
            key: 'inspect',
            title: 'Inspect the parcel',
            type: 'manual',
            instructions: 'Open it and look.',
            result_schema: {
              type: 'object',
              properties: { damage: { type: 'string', enum: ['none', 'some'], description: 'What you see' } },
              required: ['damage'],
            },
            required_evidence: [{ name: 'Photo', kind: 'file' }],
          },
        ],
      })
      const { id: case_id } = await create('/cases', { title: 'Parcel 1' })
      const execution = await post('/playbook-executions', { case_id, playbook_id: playbook.id })
      const workflow = await create('/workflows', {
        name: `Board ${Math.random()}`,
        states: [
          { name: 'review', kind: 'human', initial: true },
          { name: 'done', terminal: true },
          { name: 'back', terminal: true },
        ],
        transitions: [
          { name: 'finish', from: ['review'], to: 'done' },
          { name: 'return', from: ['review'], to: 'back' },
        ],
        payload_schema: { type: 'object', properties: { amount: { type: 'integer' } } },
      })
      const task = await create('/tasks', {
        workflow_id: workflow.id,
        title: 'Check the invoice',
        payload: { amount: 3 },
      })
      const turn = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
      const approval = await propose(suite.app, turn.id, { id: null, name: 'pay' }, { amount: 12, to: 'Ada' })
      await eventually(async () => (await read(`/orchestration-runs/${run.id}`)).status === 'awaiting_input')
      await eventually(async () => (await read(`/playbook-executions/${execution.id}`)).waiting_on)
      return { run, execution, task, approval, case_id }
    }

    it('answers a question of a run, a step, a task and an approval in place, and the work continues', async () => {
      const { run, execution, task, approval, case_id } = await waiting()
      const { page, problems } = await open('inbox')
      const card = (name: string) => page.getByRole('article', { name })

      const question = card('May this be refunded?')
      await question.getByRole('button', { name: 'Answer' }).focus()
      await page.keyboard.press('Enter')
      await question.getByRole('combobox', { name: 'Answer' }).focus()
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('Enter')
      await question.getByRole('button', { name: 'Submit' }).focus()
      await page.keyboard.press('Enter')
      const settled = await eventually(async () => {
        const now = await read(`/orchestration-runs/${run.id}`)
        return now.status === 'succeeded' ? now : null
      })
      assert.match(JSON.stringify(settled.artifacts), /"choice":"(yes|no)"/)

      const step = card('Inspect the parcel')
      await step.getByText('Open it and look.').waitFor()
      await step.getByRole('button', { name: 'Answer' }).click()
      await step.getByRole('combobox', { name: 'Damage' }).click()
      await page.getByRole('option', { name: 'some' }).click()
      const [chooser] = await Promise.all([
        page.waitForEvent('filechooser'),
        step.getByRole('button', { name: 'Photo' }).click(),
      ])
      await chooser.setFiles({ name: 'parcel.txt', mimeType: 'text/plain', buffer: Buffer.from('a dent') })
      await step.getByRole('button', { name: 'Complete step' }).click()
      await eventually(async () => (await read(`/playbook-executions/${execution.id}`)).status === 'completed')
      const evidence = await read(`/cases/${case_id}/evidence`)
      assert.ok(evidence.data.some(({ name, file_id }: any) => name === 'Photo' && file_id))

      const invoice = card('Check the invoice')
      await invoice.getByRole('button', { name: 'Answer' }).click()
      await invoice.getByLabel('Amount').fill('5')
      await invoice.getByRole('combobox', { name: 'Transition' }).click()
      await page.getByRole('option', { name: 'finish → done' }).click()
      await invoice.getByRole('button', { name: 'Submit' }).click()
      const moved = await eventually(async () => {
        const now = await read(`/tasks/${task.id}`)
        return now.state === 'done' ? now : null
      })
      assert.deepEqual(moved.payload, { amount: 5 })

      const pay = card('pay')
      await pay.getByRole('button', { name: 'Edit' }).click()
      await pay.getByLabel('Arguments').fill('{"amount": 7, "to": "Ada"}')
      const difference = pay.getByRole('group', { name: 'Differences' })
      await difference.getByText('amount').waitFor()
      assert.deepEqual(await difference.locator('code').allInnerTexts(), ['12', '7'])
      await pay.getByRole('button', { name: 'Approve edited' }).click()
      await eventually(async () => (await read(`/approvals/${approval.id}`)).status === 'approved')
      await page.getByText('Nothing waits for you').waitFor()
      assert.deepEqual(problems, [])
    })

    it('shows earlier decisions of the same kind, and its number in the navigation as work arrives', async () => {
      const { id } = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
      const earlier = await propose(suite.app, id, { id: null, name: 'refund' }, { amount: 1 })
      await post(`/approvals/${earlier.id}/reject`, { reason: 'too small' })
      const first = await open('inbox')
      const second = await open('inbox')
      await heading(first.page, 'Inbox')
      // One of the tabs reads the stream; both learn of the approval by it, long before they would poll.
      await first.page.waitForTimeout(4000)
      await propose(suite.app, id, { id: null, name: 'refund' }, { amount: 2 })
      for (const { page } of [first, second]) {
        await page.getByRole('article', { name: 'refund' }).waitFor({ timeout: 5000 })
        await page.getByRole('navigation').getByLabel('1 open').waitFor()
      }
      const card = first.page.getByRole('article', { name: 'refund' })
      await card.getByRole('button', { name: 'Earlier decisions' }).click()
      await card.getByText('too small').waitFor()
      await card.focus()
      await first.page.keyboard.press('a')
      await second.page.getByText('Nothing waits for you').waitFor({ timeout: 5000 })
      assert.deepEqual(first.problems, [])
    })

    it('opens with 10,000 approvals in a second, page by page', async () => {
      await suite.app.services.pool.query(sql.unsafe`
        insert into approvals (id, project_id, origin, status, proposed_action, expires_at, generation_id, agent_id)
        select 'apr_' || lpad(n::text, 26, '0'), ${suite.app.projectId}, 'tool_call', 'pending',
          json_build_object('tool_id', null, 'tool_name', 'tool_' || n, 'arguments', json_build_object('n', n)),
          now() + interval '1 day', 'gen_00000000000000000000000001', ${suite.app.agentId}
        from generate_series(1, 10000) n`)
      const { page, problems } = await open('start')
      await heading(page, 'Getting started')
      await page.waitForTimeout(1000)
      const start = performance.now()
      await go(page, at('inbox'))
      await page.getByRole('article').nth(24).waitFor()
      assert.ok(performance.now() - start < 1000, `${performance.now() - start}`)
      await page.getByText('10,000').first().waitFor()
      assert.equal(await page.getByRole('article').count(), 25)
      await page.getByRole('button', { name: 'Page 2', exact: true }).click()
      await page.waitForURL('**page=2')
      await suite.app.services.pool.query(sql.unsafe`delete from approvals where status = 'pending'`)
      assert.deepEqual(problems, [])
    })
  })

  describe('triggers', () => {
    it('are created with the keyboard, fired, disabled, and show what they started', async () => {
      const graph = await create('/orchestrations', {
        name: 'Nightly',
        nodes: [{ id: 'set', type: 'transform', expression: { var: 'input.day' } }],
        edges: [],
      })
      const { page, problems } = await open('triggers')
      await page.getByText('No trigger yet').waitFor()
      await press(page, 'New trigger')
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Name').focus()
      await page.keyboard.type('By keys')
      await page.keyboard.press('Tab')
      await page.keyboard.type('Nightly')
      await page.getByRole('option', { name: 'Nightly' }).waitFor()
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('Enter')
      await dialog.getByLabel('Cron').focus()
      await page.keyboard.type('0 9 * * 1')
      await page.keyboard.press('Enter')
      await heading(page, 'By keys')
      await page.getByText('Next firing').waitFor()
      await press(page, 'Fire')
      await dialog.getByLabel('Input').focus()
      await page.keyboard.type('{"day": "monday"}')
      await press(page, 'Fire')
      const row = page.getByRole('row', { name: /By hand Succeeded Orchestration ?orch_run_/ })
      await row.waitFor()
      await press(page, 'By hand', 'link')
      await page.getByRole('region', { name: 'Input' }).getByText('monday').waitFor()
      const { data } = await read(`/orchestration-runs?project_id=${suite.app.projectId}&orchestration_id=${graph.id}`)
      await page.getByRole('link', { name: data[0].id }).waitFor()
      await press(page, 'All firings', 'link')
      await press(page, 'Disable')
      await dialog.getByRole('button', { name: 'Disable' }).focus()
      await page.keyboard.press('Enter')
      await page.getByText('Inactive').waitFor()
      assert.equal(await page.getByRole('button', { name: 'Fire' }).count(), 0)
      await press(page, 'Enable')
      await page.getByText('Next firing').waitFor()
      assert.deepEqual(problems, [])
    })

    it('of calls show their secret once, and why a firing failed', async () => {
      const { page, problems } = await open('triggers')
      await page.getByRole('button', { name: 'New trigger' }).first().click()
      const dialog = page.getByRole('dialog')
      await dialog.getByRole('combobox', { name: 'Kind' }).click()
      await page.getByRole('option', { name: 'Call from outside' }).click()
      await dialog.getByRole('combobox', { name: 'Starts' }).click()
      await page.getByRole('option', { name: 'Agent' }).click()
      await dialog.getByLabel('Name').fill('Hook')
      await dialog.getByLabel('Target ID').click()
      await page.getByRole('option', { name: 'Helper' }).click()
      await dialog.getByRole('button', { name: 'Create' }).click()
      assert.match(await dialog.locator('pre').innerText(), /^[0-9a-f]{64}$/)
      await dialog.getByRole('button', { name: 'I have copied it' }).click()
      await heading(page, 'Hook')
      await page.getByRole('tab', { name: 'Record' }).click()
      await page.getByText('/api/v1/hooks/triggers/trg_').waitFor()
      await page.getByRole('button', { name: 'Rotate secret' }).click()
      await dialog.getByRole('button', { name: 'Rotate secret' }).click()
      assert.match(await dialog.locator('pre').innerText(), /^[0-9a-f]{64}$/)
      await dialog.getByRole('button', { name: 'I have copied it' }).click()
      await page.getByRole('button', { name: 'Fire' }).click()
      await dialog.getByRole('button', { name: 'Fire' }).click()
      await dialog.getByText('TRIGGER_INPUT_INVALID').waitFor()
      assert.deepEqual(
        problems.filter(problem => !problem.includes('400')),
        [],
      )
    })
  })

  describe('formations', () => {
    const template = (name: string, instructions: string) =>
      JSON.stringify({
        resources: {
          Helper: { type: 'agent', properties: { name, instructions, ai_provider_id: suite.app.providerId } },
        },
      })

    it('are planned and created with the keyboard, changed by a plan, protected, and deleted', async () => {
      const { page, problems } = await open('formations')
      await page.getByText('No formation yet').waitFor()
      await press(page, 'New formation', 'link')
      await heading(page, 'New formation')
      await page.getByLabel('Name').focus()
      await page.keyboard.type('Shop')
      await page.keyboard.press('Tab')
      await page.keyboard.press('Control+a')
      await page.keyboard.insertText(template('Clerk', 'Be kind.'))
      await press(page, 'Plan')
      await page.getByText('1 change, 0 unchanged').waitFor()
      const change = page.getByRole('article', { name: 'Helper' })
      await change.getByText('Create').waitFor()
      await change.getByText('"Be kind."').waitFor()
      await press(page, 'Create')
      await heading(page, 'Shop')
      await page.getByText('Active', { exact: true }).waitFor()
      await page.getByRole('tab', { name: 'Resources' }).click()
      await page.getByRole('row', { name: /Helper agent Created agent_/ }).waitFor()

      await page.getByRole('tab', { name: 'Plan and apply' }).click()
      await page.getByRole('textbox', { name: 'Template' }).fill(template('Clerk', 'Be brief.'))
      await page.getByRole('button', { name: 'Plan' }).click()
      await change.getByText('Update').waitFor()
      assert.deepEqual(await change.locator('code').allInnerTexts(), ['"Be kind."', '"Be brief."'])
      await page.getByRole('button', { name: 'Apply' }).click()
      await page.getByRole('region', { name: 'Update' }).getByText('Succeeded').first().waitFor()
      const { data } = await read(`/agents?project_id=${suite.app.projectId}&name=Clerk`)
      assert.equal(data[0].instructions, 'Be brief.')

      await suite.app.admin.patch(`/agents/${data[0].id}`, { instructions: 'Be loud.' })
      await page.getByRole('tab', { name: 'Drift' }).click()
      await page.getByText('Resources differ from the template').waitFor()
      assert.deepEqual(await change.locator('code').allInnerTexts(), ['"Be brief."', '"Be loud."'])
      await page.getByRole('tab', { name: 'Plan and apply' }).click()
      await page.getByRole('button', { name: 'Plan the stored template' }).click()
      await page.getByText(/Overwrites instructions/).waitFor()

      await page.getByRole('button', { name: 'Protect from deletion' }).click()
      await page.getByText('Protected').waitFor()
      assert.equal(await page.getByRole('button', { name: 'Delete' }).count(), 0)
      await page.getByRole('button', { name: 'Remove protection' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Remove protection' }).click()
      await page.getByRole('button', { name: 'Delete' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
      await page.getByText('No formation yet').waitFor()
      assert.equal((await suite.app.admin.get(`/agents/${data[0].id}`)).status, 404)
      assert.deepEqual(problems, [])
    })

    it('adopt a resource that exists', async () => {
      const made = await create('/formations', { name: 'Adopting', template: template('Known', 'Be here.') })
      const [{ physical_resource_id }] = made.resources
      await suite.app.admin.delete(`/agents/${physical_resource_id}`)
      const { id } = await create('/agents', { name: 'Existing', ai_provider_id: suite.app.providerId })
      const { page, problems } = await open(`formations/${made.id}?tab=drift`)
      await page.getByText('Missing').waitFor()
      await page.getByRole('tab', { name: 'Resources' }).click()
      await page.getByRole('button', { name: 'Adopt a resource' }).click()
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Logical ID').fill('Helper')
      await dialog.getByLabel('Physical resource ID').fill(id)
      await dialog.getByRole('button', { name: 'Adopt a resource' }).click()
      await page.getByRole('row', { name: new RegExp(`Helper agent .* ${id}`) }).waitFor()
      assert.deepEqual(problems, [])
    })
  })
})
