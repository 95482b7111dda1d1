import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { voidStatement } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { startReceiver } from '../support/receiver.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { choose, consoleSuite, focusOn, go, HOSTILE, openConsole, pressEnter } from './support.ts'

describe('the console for automation', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'delivery', 'orchestration', 'trigger'])
  const { at, open, heading, closeLater } = suite
  const receiver = forSuite(startReceiver)
  beforeEach(() => {
    receiver.requests.length = 0
    receiver.answer = 200
  })

  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const create = async (path: string, body: object) => await post(path, { project_id: suite.app.projectId, ...body })
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  /** Moves the focus to a button or link and activates it with the keyboard. */
  const press = (page: Page, name: string | RegExp, role: 'button' | 'link' = 'button') =>
    pressEnter(page.getByRole(role, { name, exact: true }).last())

  describe('webhooks', () => {
    const hook = async (fields: object = {}) =>
      await create('/webhooks', { name: 'Desk', url: receiver.url, events: ['secrets.*'], ...fields })
    const secret = async () => await create('/secrets', { name: `s${Math.random()}`, value: 'x' })

    it('send mail with a template whose body is previewed, by keyboard, and are changed to Slack', async () => {
      const key = await create('/secrets', { name: 'Mail key', value: 'mail-key' })
      const { page, problems } = await open('webhooks')
      await press(page, 'New webhook')
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Name').waitFor()
      await page.keyboard.type('Mail to the desk')
      await page.keyboard.press('Tab')
      await page.keyboard.type(receiver.url)
      await page.keyboard.press('Tab')
      await page.keyboard.type('exceptions.*')
      await page.keyboard.press('Enter')
      assert.equal(await dialog.getByLabel('Sender').count(), 0)
      await focusOn(dialog.getByRole('combobox', { name: 'Message for' }))
      await choose(page, 'Mail by Postmark')
      await focusOn(dialog.getByLabel('Sender'))
      await page.keyboard.type('alerts@shop.example')
      await page.keyboard.press('Tab')
      await page.keyboard.type('desk@shop.example')
      await page.keyboard.press('Enter')
      await focusOn(dialog.getByRole('combobox', { name: 'Key of the mail service' }))
      await choose(page, 'Mail key')
      await pressEnter(dialog.getByRole('button', { name: 'Preview' }))
      await dialog
        .getByRole('region', { name: 'Body of a sample event' })
        .getByText('"To": "desk@shop.example"')
        .waitFor()
      await pressEnter(dialog.getByRole('button', { name: 'Create', exact: true }))
      await press(page, 'I have copied it')
      await heading(page, 'Mail to the desk')
      const [made] = (await read(`/webhooks?project_id=${suite.app.projectId}`)).data
      assert.deepEqual(
        [made.template, made.mail, made.secret_id],
        ['postmark', { from: 'alerts@shop.example', to: ['desk@shop.example'] }, key.id],
      )
      await press(page, 'Edit')
      await focusOn(dialog.getByRole('combobox', { name: 'Message for' }))
      await choose(page, 'Slack')
      await pressEnter(dialog.getByRole('button', { name: 'Save', exact: true }))
      await eventually(async () => (await read(`/webhooks/${made.id}`)).template === 'slack')
      const changed = await read(`/webhooks/${made.id}`)
      assert.deepEqual([changed.mail, changed.secret_id], [null, null])
      assert.deepEqual(problems, [])
      await suite.app.admin.delete(`/webhooks/${made.id}`)
    })

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
      await page.getByRole('row', { name: /Resting .* Inactive 3 matching events passed/ }).waitFor()
      await page.getByRole('link', { name: 'Resting' }).click()
      await page.getByText(/3 matching events passed it by/).waitFor()

      await suite.app.pool.query(voidStatement`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, packed, dispatched_at, created_at)
        select left(id, -4) || lpad(n::text, 4, '0'), project_id, name, resource_type, resource_id, envelope, packed,
          dispatched_at, created_at
        from (select * from events where name = 'secrets.created' order by created_at desc limit 1) event,
          generate_series(1, 1000) n`)
      await page.reload()
      await page.getByText(/1,000\+ matching events passed it by/).waitFor()
      const since = encodeURIComponent((await read(`/webhooks/${id}`)).updated_at)
      const counted: string[] = []
      page.on('request', request => request.url().includes(`from=${since}`) && counted.push(request.url()))
      await go(page, at('webhooks?active=false'))
      await page.getByRole('row', { name: /Resting .* Inactive 1,000\+ matching events passed/ }).waitFor()
      await page.getByRole('link', { name: 'Resting' }).click()
      await page.getByText(/1,000\+ matching events/).waitFor()
      assert.deepEqual(counted, [])
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

  describe('triggers', () => {
    it('are created with the keyboard, fired and disabled, and show the work they started', async () => {
      const graph = await create('/orchestrations', {
        name: 'Nightly',
        nodes: [{ id: 'set', type: 'transform', expression: { var: 'input.day' } }],
        edges: [],
      })
      const { page, problems } = await open('triggers')
      await page.getByText('No trigger yet').waitFor()
      await press(page, 'New trigger')
      const dialog = page.getByRole('dialog')
      await focusOn(dialog.getByLabel('Name'))
      await page.keyboard.type('By keys')
      await page.keyboard.press('Tab')
      await page.keyboard.type('Nightly')
      await choose(page, 'Nightly')
      await focusOn(dialog.getByLabel('Cron'))
      await page.keyboard.type('0 9 * * 1')
      await page.keyboard.press('Enter')
      await heading(page, 'By keys')
      await page.getByText('Next firing').waitFor()
      await press(page, 'Fire')
      await focusOn(dialog.getByLabel('Input'))
      await page.keyboard.type('{"day": "monday"}')
      await press(page, 'Fire')
      const row = page.getByRole('row', { name: /Manual Succeeded Orchestration ?orch_run_/ })
      await row.waitFor()
      await press(page, 'Manual', 'link')
      await page.getByRole('region', { name: 'Input' }).getByText('monday').waitFor()
      const { data } = await read(`/orchestration-runs?project_id=${suite.app.projectId}&orchestration_id=${graph.id}`)
      await page.getByRole('link', { name: data[0].id }).waitFor()
      await press(page, 'All firings', 'link')
      await press(page, 'Disable')
      await pressEnter(dialog.getByRole('button', { name: 'Disable' }))
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
      await dialog.getByLabel('Target').click()
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
      await focusOn(page.getByLabel('Name'))
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
      await dialog.getByLabel('Name in the template').fill('Helper')
      await dialog.getByRole('textbox', { name: 'ID' }).fill(id)
      await dialog.getByRole('button', { name: 'Adopt a resource' }).click()
      await page.getByRole('row', { name: new RegExp(`Helper agent .* ${id}`) }).waitFor()
      assert.deepEqual(problems, [])
    })
  })

  describe('all of them', () => {
    /** A record of each kind with a hostile text wherever there is one, and an answer of a receiver that is hostile. */
    const hostile = async () => {
      receiver.answer = (_, response) => response.writeHead(400).end(HOSTILE)
      const hook = await create('/webhooks', {
        name: HOSTILE,
        description: HOSTILE,
        url: receiver.url,
        events: ['secrets.*'],
      })
      const { id } = await create('/secrets', { name: `hostile${Math.random()}`, value: 'x' })
      const delivery = await eventually(
        async () => (await read(`/webhook-deliveries?webhook_id=${hook.id}&status=failed`)).data[0],
      )
      const trigger = await create('/triggers', {
        name: HOSTILE,
        description: HOSTILE,
        type: 'manual',
        target_type: 'agent',
        target_id: suite.app.agentId,
        input: { message: HOSTILE },
      })
      const firing = await post(`/triggers/${trigger.id}/fire`, { input: { [HOSTILE]: HOSTILE } })
      const formation = await create('/formations', {
        name: HOSTILE,
        template: { resources: {}, metadata: { text: HOSTILE }, outputs: { text: HOSTILE } },
      })
      const [event] = (await read(`/events?project_id=${suite.app.projectId}&resource_id=${id}`)).data
      return {
        webhook: `webhooks/${hook.id}`,
        delivery: `webhooks/${hook.id}/deliveries/${delivery.id}`,
        event: `events/${event.id}`,
        trigger: `triggers/${trigger.id}`,
        firing: `triggers/${trigger.id}/firings/${firing.id}`,
        formation: `formations/${formation.id}`,
      }
    }

    it('shows hostile text as text', async () => {
      const views = await hostile()
      await suite.checkHostileText([
        'webhooks',
        ...Object.values(views).filter(view => view !== views.formation),
        `${views.trigger}?tab=record`,
        'triggers',
        'formations',
        `${views.formation}?tab=record`,
      ])
    })

    it('has no violation of WCAG 2.2 AA, and no sideways scrolling on a phone', async () => {
      const hook = await create('/webhooks', { name: 'Quiet', url: receiver.url, events: ['*'], active: false })
      await create('/webhooks', { name: 'Loud', url: receiver.url, events: ['secrets.*'] })
      const { id } = await create('/secrets', { name: `calm${Math.random()}`, value: 'x' })
      const [event] = (await read(`/events?project_id=${suite.app.projectId}&resource_id=${id}`)).data
      const trigger = await create('/triggers', {
        name: 'Monday',
        type: 'schedule',
        cron: '0 9 * * 1',
        target_type: 'agent',
        target_id: suite.app.agentId,
        input: { message: 'hi' },
      })
      const firing = await post(`/triggers/${trigger.id}/fire`)
      const { data } = await read(`/webhooks?project_id=${suite.app.projectId}`)
      const loud = data.find(({ name }: { name: string }) => name === 'Loud')
      const test = await post(`/webhooks/${loud.id}/test`)
      const formation = await create('/formations', {
        name: 'Stack',
        template: {
          resources: {
            Bot: { type: 'agent', properties: { name: 'Bot', ai_provider_id: suite.app.providerId } },
          },
        },
      })
      await suite.checkAccess([
        ['webhooks', 'Webhooks'],
        [`webhooks/${hook.id}`, 'Quiet'],
        [`webhooks/${loud.id}?tab=signature`, 'Loud'],
        [`webhooks/${loud.id}/deliveries/${test.id}`, 'webhooks.test'],
        ['events', 'Events'],
        [`events/${event.id}`, 'secrets.created'],
        ['triggers', 'Triggers'],
        [`triggers/${trigger.id}`, 'Monday'],
        [`triggers/${trigger.id}/firings/${firing.id}`, 'Firing: Manual'],
        ['formations', 'Formations'],
        ['formations/new', 'New formation'],
        [`formations/${formation.id}`, 'Stack'],
        [`formations/${formation.id}?tab=plan`, 'Stack'],
        [`formations/${formation.id}?tab=drift`, 'Stack'],
        [`formations/${formation.id}?tab=operations`, 'Stack'],
      ])
    })

    it('has a state for each failure of the service', async () => {
      const { page } = await open('start')
      for (const [view, status] of [
        ['webhooks', 500],
        ['events', 403],
        ['triggers', 429],
        ['formations', 0],
      ] as const) {
        await page.route(new RegExp(`/api/v1/${view}\\?`), route =>
          status ? route.fulfill({ status, body: '{}' }) : route.abort(),
        )
        await go(page, at(view))
        const state = status === 403 ? 'You may not see this' : 'This could not be loaded'
        await page.getByText(state).waitFor()
      }
    })

    it('offers only what the user may do, and requests nothing that the user may not see', async () => {
      const { id } = await create('/webhooks', { name: 'Seen', url: receiver.url, events: ['*'], active: false })
      const { projectId } = suite.app
      await suite.app.user('eve', [allowing(projectId, ['webhooks:ListWebhooks', 'webhooks:GetWebhook'])])
      const watched = await openConsole(suite.chromium, suite.app, at('webhooks'), 'eve')
      closeLater(watched)
      const { page } = watched
      await page.getByRole('link', { name: 'Seen' }).waitFor()
      const requested: string[] = []
      page.on('request', request => requested.push(new URL(request.url()).pathname))
      // Everybody has own keys and grants.
      const offered = ['Webhooks', 'Keys', 'Connected apps']
      assert.deepEqual(await page.getByRole('navigation').getByRole('link').allInnerTexts(), offered)
      assert.equal(await page.getByRole('main').getByRole('button').count(), 0)
      await go(page, at(`webhooks/${id}`))
      await page.getByText('webhooks:ListWebhookDeliveries').waitFor()
      await page.getByRole('tab', { name: 'Record' }).click()
      await page.getByText('/hook').waitFor()
      assert.equal(await page.getByRole('main').getByRole('button').count(), 1, 'copies the ID')
      for (const [view, action] of [
        ['events', 'events:ListEvents'],
        ['triggers', 'triggers:ListTriggers'],
        ['formations/new', 'formations:ListFormations'],
      ]) {
        await go(page, at(view))
        await page.getByText(action).waitFor()
      }
      const foreign = requested.filter(path =>
        /^.api.v1.(events|triggers|formations|policies|approvals|tasks|orch)/.test(path),
      )
      assert.deepEqual(foreign, [])
    })
  })
})
