import { srn } from '#core/api/kind.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type QuotaRow, quotaKind } from './model.ts'
import { lockMarks, type QuotaMeasurement, type ReportedMarks, setMarks } from './store.ts'
import type { Window } from './windows.ts'

/** Reports due after a measurement, each once per window. */
export type ReportReasons = { exceeded: boolean; audited: boolean; fraction: number | null }

/** Whether a mark covers the window. Marks only advance, so a lagging process does not report a past window again. */
const isReported = (mark: string | null, window: Window): boolean => mark !== null && mark >= window.key

/**
 * Returns the reports due for a measured value, or null. `breached` is whether the value breaks the limit, which
 * depends on the metric.
 */
export function reportReasons(
  quota: QuotaMeasurement,
  window: Window,
  value: number,
  breached: boolean,
): ReportReasons | null {
  const reached = quota.warn_at.filter(fraction => value >= fraction * quota.limit)
  const fraction = reached.length > 0 ? Math.max(...reached) : null
  const reasons = {
    exceeded: breached && !isReported(quota.fired_window_key, window),
    audited: breached && quota.mode === 'monitor' && !isReported(quota.audited_window_key, window),
    fraction: fraction !== null && !isWarned(quota, window, fraction) ? fraction : null,
  }
  return reasons.exceeded || reasons.audited || reasons.fraction !== null ? reasons : null
}

const isWarned = (marks: Pick<QuotaRow, 'warned_window_key' | 'warned_fraction'>, window: Window, fraction: number) =>
  isReported(marks.warned_window_key, window) &&
  (marks.warned_window_key !== window.key || (marks.warned_fraction ?? 0) >= fraction)

/**
 * Reports a measurement: quota.exceeded, the audit entry of a monitored breach, quotas.warned. The marks advance under
 * the row lock in the transaction that writes the reports, so concurrent breaches in several processes report once.
 */
export const reportMeasurement = (
  services: Pick<Services, 'write' | 'clock'>,
  quota: QuotaMeasurement,
  window: Window,
  values: { exceeded: number; warned: (fraction: number) => number },
  reasons: ReportReasons,
): Promise<void> =>
  services.write(async tx => {
    const row = await lockMarks(tx, quota.id)
    if (!row) return
    const marks: ReportedMarks = { ...row }
    if (reasons.exceeded && !isReported(row.fired_window_key, window)) {
      marks.fired_window_key = window.key
      marks.last_fired_at = services.clock.now().toISOString()
      emitExceeded(tx, quota, window, values.exceeded)
    }
    if (reasons.audited && !isReported(row.audited_window_key, window)) {
      marks.audited_window_key = window.key
      auditMonitored(tx, quota, window, values.exceeded)
    }
    if (reasons.fraction !== null && !isWarned(row, window, reasons.fraction)) {
      const { fraction: top } = reasons
      const due = quota.warn_at.filter(fraction => fraction <= top && !isWarned(row, window, fraction))
      marks.warned_window_key = window.key
      marks.warned_fraction = top
      for (const fraction of due.sort((a, b) => a - b)) emitWarned(tx, row, window, values.warned(fraction), fraction)
    }
    await setMarks(tx, quota.id, marks)
  })

/** Active reports, by quota, window and reasons. */
const activeReports = processSingleton(() => new Set<string>())

/**
 * Starts the report of a measured value outside of the caller's transaction, which a refusal rolls back. Does not wait
 * for it; a report lost with its process is repeated by the next check.
 * @param observed value compared with the limit; `used` is compared with the warnings, where `observed` includes
 *   reservations
 */
export function reportLater(
  services: Services,
  quota: QuotaMeasurement,
  window: Window,
  { observed, breached, used = observed }: { observed: number; breached: boolean; used?: number },
): void {
  const reasons = reportReasons(quota, window, used, breached)
  if (!reasons) return
  const reports = activeReports(services)
  const key = `${quota.id} ${window.key} ${JSON.stringify(reasons)}`
  if (reports.has(key)) return
  reports.add(key)
  onSeparateConnection(() =>
    reportMeasurement(services, quota, window, { exceeded: observed, warned: () => used }, reasons),
  )
    .catch(error => services.log.error({ err: error, quota_id: quota.id }, 'quota report failed'))
    .finally(() => reports.delete(key))
}

const reportFields = (quota: QuotaMeasurement, window: Window, observed: number) => ({
  metric: quota.metric,
  meter_type: quota.meter_type,
  scope: quota.scope,
  scope_ref: quota.scope_ref,
  window: quota.window,
  window_key: window.key,
  limit: quota.limit,
  observed_value: observed,
})

function emitExceeded(tx: Tx, measured: QuotaMeasurement, window: Window, observed: number): void {
  const { id: quota_id, project_id, mode } = measured
  const data = { quota_id, project_id, ...reportFields(measured, window, observed), mode }
  tx.emit(quotaKind, 'exceeded', measured, { data })
}

function emitWarned(tx: Tx, row: QuotaRow, window: Window, observed: number, fraction: number): void {
  const { key: window_key, resets_at } = window
  const usage = row.metric === 'requests' && resets_at ? { window_key, count: observed, resets_at } : null
  const extra = { window_key, observed_value: observed, fraction }
  tx.emit(quotaKind, 'warned', { ...row, current_usage: usage }, { extra })
}

function auditMonitored(tx: Tx, quota: QuotaMeasurement, window: Window, observed: number): void {
  tx.audit(
    newAuditEntry({
      project_id: quota.project_id,
      action: 'quotas:MonitorBreach',
      resource_srn: srn(quota.project_id, 'quota', quota.id),
      resource_public_id: quota.id,
      detail: { kind: 'quota_monitor_breach', ...reportFields(quota, window, observed) },
    }),
  )
}
