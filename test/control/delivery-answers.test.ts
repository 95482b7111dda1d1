import assert from 'node:assert/strict'
import { eventually, startApp } from '../support/app.ts'
import { emitNamed } from '../support/events.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

describe('stored answers to deliveries', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'] }))
  const receiver = forSuite(startReceiver)

  const kept = async (answer: string): Promise<string> => {
    receiver.answer = (_, response) => response.end(answer)
    const { id: project_id } = await app.project()
    const hook = { project_id, name: 'h', url: receiver.url, events: ['secrets.*'] }
    const { body: webhook } = await app.admin.post('/webhooks', hook)
    await app.servicesOf(project_id).write(async tx => emitNamed(tx, 'secrets.updated', project_id, { id: 'sec_1' }))
    const delivery = await eventually(async () => {
      const { body } = await app.admin.get(`/webhook-deliveries?webhook_id=${webhook.id}`)
      return body.data.find(({ status }: { status: string }) => status === 'completed')
    })
    return delivery.response_body
  }

  it('ends with a whole character', async () => {
    assert.equal(await kept(`${'x'.repeat(1023)}äx`), 'x'.repeat(1023))
    assert.equal(await kept(`${'x'.repeat(1021)}😀`), 'x'.repeat(1021))
    assert.equal(await kept(`${'x'.repeat(1022)}ä`), `${'x'.repeat(1022)}ä`)
    assert.equal(await kept(`${'x'.repeat(1020)}😀xxx`), `${'x'.repeat(1020)}😀`)
  })
})
