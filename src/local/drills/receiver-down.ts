import { setTimeout as sleep } from 'node:timers/promises'
import type { Drill } from './drill.ts'
import { waitUntilNone } from './wait.ts'

/**
 * The receiver of webhooks refuses deliveries, then does not answer them. Deliveries that have failed three times are sent
 * again, as an operator does after an outage.
 */
export const receiverDown: Drill = {
  name: 'receiver-down',
  summary: 'the receiver of webhooks refuses deliveries, then does not answer',
  seconds: 25,
  staging: true,
  promises: ['available'],
  async break({ receiver, seconds, note }) {
    for (const state of ['refused', 'unanswered'] as const) {
      receiver.deliveries = state
      note(`deliveries are ${state}`)
      await sleep((seconds * 1000) / 3)
    }
    receiver.deliveries = 'accepted'
    note('deliveries are accepted')
  },
  async repair({ api, prepared, note }) {
    const { webhook_id } = prepared
    const queued = `/webhook-deliveries?webhook_id=${webhook_id}&status=queued&limit=1`
    await waitUntilNone('queued deliveries', async () => (await api('GET', queued)).total)
    const { count } = await api('POST', '/webhook-deliveries/redeliver', { webhook_id, status: 'failed' })
    note(`${count} failed deliveries are sent again`)
  },
}
