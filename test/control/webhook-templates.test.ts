import { strict as assert } from 'node:assert'
import { type Client, eventually, startApp } from '../support/app.ts'
import { startMessageService } from '../support/message-services.ts'
import { type Receiver, readSignature, startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

/** What an end user may write to be noticed: mentions, links, markup, headers of a mail. */
const HOSTILE =
  '<!channel> <@U123> <https://evil.example|Sign in> & https://evil.example/login www.evil.example *bold* "\r\nBcc: all@evil.example'

const MAIL = { from: 'alerts@shop.example', to: ['desk@shop.example', 'lead@shop.example'] }

describe('templates of webhooks', () => {
  const app = forSuite(() => startApp({ workers: ['delivery', 'orchestration'] }))
  let project: string
  let receivers: Receiver[]
  beforeEach(async () => {
    receivers = []
    project = (await app.project()).id
  })
  afterEach(async () => void (await Promise.all(receivers.map(receiver => receiver.close()))))

  const service = async (name: Parameters<typeof startMessageService>[0]) => {
    const receiver = await startMessageService(name)
    receivers.push(receiver)
    return receiver
  }
  const create = (receiver: { url: string }, more: object, caller: Client = app.admin) =>
    caller.post('/webhooks', {
      project_id: project,
      name: 'told',
      url: receiver.url,
      events: ['exceptions.*'],
      ...more,
    })
  const makeKey = async (value = 'mail-key', owner = project) =>
    (await app.admin.post('/secrets', { project_id: owner, name: `key ${Math.random()}`, value })).body.id as string
  const fileException = (title: string) => app.admin.post('/exceptions', { project_id: project, title })
  const delivered = (webhook: string) =>
    eventually(async () => {
      const { data } = (await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}`)).body
      return data[0] && data[0].status !== 'queued' ? data[0] : null
    })
  const userWith = (actions: string[], resource = '*') =>
    app.user(undefined, [
      { statement: [{ effect: 'Allow', action: actions, resource: [`srn:${project}:*:${resource}`] }] },
    ])

  it('writes messages that Slack accepts, signed over the body sent', async () => {
    const slack = await service('slack')
    const { id, secret } = (await create(slack, { template: 'slack' })).body
    await fileException(HOSTILE)
    const delivery = await delivered(id)
    assert.deepEqual([delivery.status, delivery.status_code, delivery.response_body], ['completed', 200, 'ok'])
    assert.equal(delivery.payload.event, 'exceptions.created')
    const [request] = slack.requests
    assert.deepEqual(readSignature(request, secret).verified, [true])
    assert.equal(request.headers['x-svc-event'], 'exceptions.created')
    const texts = JSON.stringify(request.event)
    assert.ok(texts.includes('&lt;!channel&gt; &lt;@U123&gt;'), texts)
    // Only the console is linked.
    assert.deepEqual(
      [...texts.matchAll(/<([^|>]*)/g)].map(match => match[1]),
      [`${app.services.config.BASE_URL}/app/p/${project}/events/${delivery.payload.id}`],
    )
  })

  it('keeps long texts and many fields within the limits of Slack', async () => {
    const slack = await service('slack')
    const { id } = (await create(slack, { template: 'slack', events: ['*'] })).body
    await fileException('<&>'.repeat(160))
    assert.equal((await delivered(id)).status, 'completed')
    const made = await app.admin.post('/actors', { project_id: project, name: '<'.repeat(200) })
    assert.equal(made.status, 201)
    await eventually(async () => {
      const { data } = (await app.admin.get(`/webhook-deliveries?webhook_id=${id}&event_type=actors.created`)).body
      return data[0]?.status === 'completed' ? true : null
    })
  })

  for (const [template, status] of [
    ['postmark', 200],
    ['sendgrid', 202],
  ] as const)
    it(`sends mail by ${template} with the key of a secret, which is in no record`, async () => {
      const mail = await service(template)
      const secret_id = await makeKey()
      const made = await create(mail, { template, mail: MAIL, secret_id })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.deepEqual([made.body.template, made.body.mail, made.body.secret_id], [template, MAIL, secret_id])
      await fileException(HOSTILE)
      const delivery = await delivered(made.body.id)
      assert.deepEqual([delivery.status, delivery.status_code], ['completed', status])
      const { event, body } = mail.requests[0]
      assert.ok(!body.includes('mail-key'))
      const subject = event.Subject ?? event.subject
      const text = event.TextBody ?? event.content[0].value
      assert.match(subject, /^exceptions\.created: <!channel>/)
      // No address of the end user is one to a reader of mail.
      assert.ok(!/evil\.example/.test(subject + text), text)
      assert.ok(!/https?:\/\/(?!localhost|127\.0\.0\.1)/.test(text), text)
      const records = [`/webhooks/${made.body.id}`, `/webhook-deliveries/${delivery.id}`].map(path =>
        app.admin.get(path),
      )
      for (const record of await Promise.all(records)) assert.ok(!JSON.stringify(record.body).includes('mail-key'))
    })

  it('masks a key that a service repeats, and retries like every delivery', async () => {
    const broken = await startReceiver((request, response) => {
      response.statusCode = broken.requests.length < 3 ? 500 : 200
      response.end(`seen ${request.headers['x-postmark-server-token']}`)
    })
    receivers.push(broken)
    const { id } = (await create(broken, { template: 'postmark', mail: MAIL, secret_id: await makeKey() })).body
    await fileException('Ledger is down')
    const delivery = await delivered(id)
    assert.deepEqual([delivery.status, delivery.attempts], ['completed', 3])
    assert.ok(!delivery.response_body.includes('mail-key'), delivery.response_body)
    assert.deepEqual(new Set(broken.requests.map(request => request.body)).size, 1)
  })

  it('sends nothing without a usable key', async () => {
    const mail = await service('postmark')
    const { id } = (await create(mail, { template: 'postmark', mail: MAIL, secret_id: await makeKey('two\nlines') }))
      .body
    await fileException('Ledger is down')
    const delivery = await delivered(id)
    assert.deepEqual([delivery.status, delivery.attempts, mail.requests.length], ['failed', 0, 0])
    assert.match(delivery.response_body, /is not a header value/)
  })

  it('applies the current template to queued deliveries and redeliveries, and an event without one is sent as before', async () => {
    const slack = await service('slack')
    const { id } = (await create(slack, {})).body
    await fileException('Ledger is down')
    // An envelope is no message of Slack.
    const refused = await delivered(id)
    assert.deepEqual([refused.status, refused.response_body], ['failed', 'invalid_payload'])
    assert.deepEqual(slack.requests[0].event, refused.payload)
    assert.equal((await app.admin.patch(`/webhooks/${id}`, { template: 'slack' })).status, 200)
    const again = (await app.admin.post(`/webhook-deliveries/${refused.id}/redeliver`)).body
    await eventually(async () =>
      (await app.admin.get(`/webhook-deliveries/${again.id}`)).body.status === 'completed' ? true : null,
    )
    await app.admin.post(`/webhooks/${id}/test`)
    await eventually(() => slack.requests.at(-1)?.event.text?.startsWith('webhooks.test: webhook wh_') || null)
  })

  it('refuses combinations that cannot be sent, by field', async () => {
    const secret_id = await makeKey()
    const bad: [object, string][] = [
      [{ template: 'teams' }, 'template'],
      [{ template: 'postmark', secret_id }, 'mail'],
      [{ template: 'postmark', mail: MAIL }, 'secret_id'],
      [{ template: 'slack', mail: MAIL }, 'mail'],
      [{ template: 'slack', secret_id }, 'secret_id'],
      [{ secret_id }, 'secret_id'],
      [{ template: 'sendgrid', secret_id, mail: { ...MAIL, to: [] } }, 'mail.to'],
      [{ template: 'sendgrid', secret_id, mail: { ...MAIL, to: ['a@shop.example', 'A@shop.example'] } }, 'mail.to'],
      [{ template: 'sendgrid', secret_id, mail: { ...MAIL, to: ['a@shop.example,b@shop.example'] } }, 'mail.to[0]'],
      [
        { template: 'sendgrid', secret_id, mail: { ...MAIL, from: 'Desk <desk@shop.example>\r\nBcc: x@y.z' } },
        'mail.from',
      ],
    ]
    for (const [more, path] of bad) {
      const answer = await create({ url: 'https://shop.example/' }, more)
      assert.equal(answer.status, 400, JSON.stringify(more))
      assert.equal(answer.body.error.meta.problems[0].path, path, JSON.stringify(more))
    }
    const { id } = (await create({ url: 'https://shop.example/' }, { template: 'postmark', mail: MAIL, secret_id }))
      .body
    for (const patch of [{ template: null }, { mail: null }, { secret_id: null }])
      assert.equal((await app.admin.patch(`/webhooks/${id}`, patch)).status, 400, JSON.stringify(patch))
    const cleared = await app.admin.patch(`/webhooks/${id}`, { template: null, mail: null, secret_id: null })
    assert.deepEqual([cleared.status, cleared.body.template], [200, null])
  })

  it('requires the right to use a secret for it, and for another place to send it to', async () => {
    const secret_id = await makeKey()
    const writer = await userWith(['webhooks:*'])
    const values = { template: 'postmark', mail: MAIL, secret_id }
    const place = { url: 'https://shop.example/' }
    assert.equal((await create(place, values, writer)).status, 403)
    const { id } = (await create(place, values)).body
    assert.equal((await writer.patch(`/webhooks/${id}`, { name: 'renamed', events: ['*'] })).status, 200)
    for (const patch of [
      { url: 'https://evil.example/' },
      { template: 'sendgrid' },
      { secret_id: await makeKey() },
      { mail: { ...MAIL, to: ['all@evil.example'] } },
    ])
      assert.equal((await writer.patch(`/webhooks/${id}`, patch)).status, 403, JSON.stringify(patch))
    const both = await userWith(['webhooks:*', 'secrets:UseSecret'])
    assert.equal((await both.patch(`/webhooks/${id}`, { url: 'https://mail.example/' })).status, 200)
  })

  it('treats the secret of another project like an unknown one, and keeps a secret in use', async () => {
    const foreign = await makeKey('mail-key', (await app.project()).id)
    for (const secret_id of [foreign, 'sec_00000000000000000000000000']) {
      const answer = await create({ url: 'https://shop.example/' }, { template: 'postmark', mail: MAIL, secret_id })
      assert.deepEqual([answer.status, answer.body.error.code], [400, 'SECRET_NOT_FOUND'])
    }
    const secret_id = await makeKey()
    const { id } = (await create({ url: 'https://shop.example/' }, { template: 'postmark', mail: MAIL, secret_id }))
      .body
    const blocked = await app.admin.delete(`/secrets/${secret_id}?force=true`)
    assert.deepEqual([blocked.status, blocked.body.error.code], [409, 'SECRET_HAS_DEPENDENTS'])
    assert.deepEqual(blocked.body.error.meta.counts, { webhooks: 1 })
    assert.equal((await app.admin.delete(`/webhooks/${id}`)).status, 204)
    assert.equal((await app.admin.delete(`/secrets/${secret_id}`)).status, 204)
  })

  it('deletes a project with a webhook that sends mail', async () => {
    await create({ url: 'https://shop.example/' }, { template: 'postmark', mail: MAIL, secret_id: await makeKey() })
    assert.equal((await app.admin.delete(`/projects/${project}?force=true`)).status, 204)
  })

  it('previews the body of a sample event without sending it', async () => {
    const caller = await userWith(['webhooks:PreviewWebhook'])
    const preview = async (body: object) => {
      const answer = await caller.post('/webhooks/preview', { project_id: project, ...body })
      return [answer.status, answer.status === 200 ? JSON.parse(answer.body.body) : answer.body.error.code]
    }
    const [, slack] = await preview({ template: 'slack' })
    assert.equal(slack.blocks[1].fields[0].text, '*title*\nRefund order 1042')
    const [, mail] = await preview({ template: 'sendgrid', mail: MAIL })
    assert.equal(mail.from.email, MAIL.from)
    assert.equal((await preview({}))[1].event, 'approvals.created')
    assert.deepEqual(await preview({ template: 'postmark' }), [400, 'VALIDATION_FAILED'])
    assert.equal(
      (await (await userWith(['webhooks:GetWebhook'])).post('/webhooks/preview', { project_id: project })).status,
      403,
    )
    const stranger = await app.user((await app.project()).id)
    assert.ok([403, 404].includes((await stranger.post('/webhooks/preview', { project_id: project })).status))
  })

  it('deploys and exports a webhook with its secret', async () => {
    const template = {
      parameters: { Key: { no_echo: true } },
      resources: {
        Key: { type: 'secret', properties: { name: 'mail', value: { param: 'Key' } } },
        Told: {
          type: 'webhook',
          properties: {
            name: 'told',
            url: 'https://api.postmarkapp.com/email',
            events: ['approvals.created'],
            template: 'postmark',
            mail: MAIL,
            secret_id: { ref: 'Key' },
          },
        },
      },
    }
    const made = await app.admin.post('/formations', {
      project_id: project,
      name: 'told',
      template,
      parameters: { Key: 'mail-key' },
    })
    assert.equal(made.body.status, 'active', JSON.stringify(made.body))
    const exported = (await app.admin.post('/formations/export', { project_id: project, formation_id: made.body.id }))
      .body
    const webhook: any = Object.values(exported.template.resources).find((each: any) => each.type === 'webhook')
    assert.equal(webhook.properties.template, 'postmark')
    assert.deepEqual(Object.keys(webhook.properties.secret_id), ['ref'])
    assert.equal((await app.admin.delete(`/formations/${made.body.id}`)).status, 200)
  })
})
