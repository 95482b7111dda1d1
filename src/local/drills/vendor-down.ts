import { setTimeout as sleep } from 'node:timers/promises'
import type { Drill } from './drill.ts'
import { scriptLane } from './kinds.ts'

const LANES = ['talker', 'writer', 'caller', 'measured']

/** The model vendor answers every call with 503, then refuses connections. */
export const vendorDown: Drill = {
  name: 'vendor-down',
  summary: 'the model vendor answers with 503, then refuses connections',
  seconds: 30,
  staging: true,
  promises: ['available'],
  async break({ double, seconds, note }) {
    note('the vendor answers with 503')
    const script = { rules: [{ reply: { error: { status: 503 } } }] }
    for (const lane of LANES) await scriptLane(double.url, lane, script)
    await sleep((seconds * 1000) / 4)
    note('the vendor refuses connections')
    await double.stop()
    await sleep((seconds * 1000) / 4)
    await double.restart()
    note('the vendor answers')
  },
}
