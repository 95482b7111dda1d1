import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
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
})
