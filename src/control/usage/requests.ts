import { randomBytes } from 'node:crypto'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { recordUsageLater, usageBuffer } from './meter.ts'
import type { UsageDraft } from './usage-draft.ts'

/**
 * Counts requests of project keys in memory and periodically records one usage event per project and key. A killed
 * process loses the counts since the last flush.
 */
function openRequestMeter(services: Services) {
  const { clock, config } = services
  // Opened first, so that it closes last and accepts the final flush.
  usageBuffer(services)
  // Several processes may share an INSTANCE_ID.
  const instance = `${config.INSTANCE_ID}.${randomBytes(4).toString('hex')}`
  let began = clock.now()
  let counts = new Map<string, { project_id: string; key_id: string; count: number }>()

  const flush = () => {
    const counted = [...counts.values()]
    const window = began.toISOString()
    counts = new Map()
    began = clock.now()
    recordUsageLater(
      services,
      counted.map(
        ({ project_id, key_id, count }): UsageDraft => ({
          idempotency_key: `api_request:${project_id}:${key_id}:${window}:${instance}`,
          project_id,
          meter_type: 'api_request',
          provider: 'platform',
          model: 'request',
          source: null,
          components: [{ component: 'request', quantity: count, unit: 'request', billable: true }],
        }),
      ),
    )
  }
  const timer = setInterval(flush, config.USAGE_REQUEST_FLUSH_INTERVAL_MS).unref()

  return {
    count(keyId: string, projectId: string): void {
      const key = `${projectId} ${keyId}`
      const entry = counts.get(key)
      if (entry) entry.count++
      else counts.set(key, { project_id: projectId, key_id: keyId, count: 1 })
    },
    close(): void {
      clearInterval(timer)
      flush()
    },
  }
}

const requestMeter = processSingleton(openRequestMeter, meter => meter.close())

/** Counts a request of a project key, including refused requests. */
export function meterRequest(services: Services, caller: Caller, projectId: string): void {
  if (!services.config.USAGE_REQUEST_METERING_DISABLED) requestMeter(services).count(caller.credential.id, projectId)
}
