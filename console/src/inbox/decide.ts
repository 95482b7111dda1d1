import { notifications } from '@mantine/notifications'
import { type Approval, errorOf } from '@muster/client'
import { approveApproval, getApproval, rejectApproval, resolveApprovals } from '@muster/client/operations'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { api } from '#api.ts'
import { confirmUnload } from '#leaving.ts'
import { forgetScope } from '#session/drafts.ts'
import * as strings from '#strings.ts'

/** Time in which a decision can be undone; nothing is sent before its end. */
export const UNDO_MS = 5000

type Terms = {
  rows: Approval[]
  status: 'approved' | 'rejected'
  reason?: string
  edited?: Record<string, unknown>
}
/** A decision that is sent at `due`, or being sent. */
export type PendingDecision = Terms & { key: number; due: number; isSent: boolean }
/** A decision that the service refused, with the current approval. */
export type Refusal = { row: Approval; error: unknown; current: Approval | null }

/** The scope of the input for a decision, which is kept until the decision was sent. */
export const scopeOf = (rows: readonly Approval[]): string => rows.map(({ id }) => id).join()

/** Sends a decision; returns the errors of those that are refused, by approval. */
async function send({ rows, status, reason, edited }: Terms): Promise<Map<string, unknown>> {
  const [{ id }] = rows
  const why = reason ? { reason } : {}
  if (rows.length > 1) {
    const ids = rows.map(row => row.id)
    const { results } = await resolveApprovals(api, { ids, decision: status, ...why })
    return new Map(
      results.flatMap(({ id, error }) =>
        error
          ? [[id, errorOf({ hint: '', docs_url: '', ...error }, { status: 409, requestId: null, retryAfter: null })]]
          : [],
      ),
    )
  }
  if (status === 'approved') await approveApproval(api, { approval_id: id, ...(edited ? { arguments: edited } : {}) })
  else await rejectApproval(api, { approval_id: id, ...why })
  return new Map()
}

type Decisions = { pending: PendingDecision[]; refused: Refusal[] }

const timers = new Map<number, { timer: ReturnType<typeof setTimeout>; release: () => void }>()
let lastKey = 0

/** Ends the wait of a decision; returns whether there was one. */
function stopWaiting(key: number): boolean {
  const wait = timers.get(key)
  clearTimeout(wait?.timer)
  wait?.release()
  return timers.delete(key)
}

/**
 * Decisions on approvals of a project that wait for the time in which they can be undone, also while other views are open;
 * the browser requires a confirmation before it leaves the page. Unsent decisions are forgotten when the user signs out.
 */
export function useDecisions(projectId: string) {
  const cache = useQueryClient()
  const queryKey = ['approval-decisions', projectId]
  const none: Decisions = { pending: [], refused: [] }
  const { data: decisions } = useQuery<Decisions>({
    queryKey,
    // Reading everything again must not replace them.
    enabled: false,
    initialData: none,
    gcTime: Number.POSITIVE_INFINITY,
  })
  const read = (): Decisions => cache.getQueryData<Decisions>(queryKey) ?? none
  const write = (change: Partial<Decisions>) => cache.setQueryData<Decisions>(queryKey, { ...read(), ...change })
  const withoutRows = (rows: readonly Approval[]) =>
    read().refused.filter(({ row }) => !rows.some(({ id }) => id === row.id))
  const remove = (key: number) => write({ pending: read().pending.filter(each => each.key !== key) })

  const refuse = async (row: Approval, error: unknown) => {
    const current = await getApproval(api, { approval_id: row.id }).catch(() => null)
    if (current && current.status !== 'pending') forgetScope(row.id)
    write({ refused: [...withoutRows([row]), { row, error, current }] })
  }

  const finish = async (key: number, terms: Terms) => {
    stopWaiting(key)
    if (!read().pending.some(each => each.key === key)) return
    write({ pending: read().pending.map(each => (each.key === key ? { ...each, isSent: true } : each)) })
    const failures = await send(terms).catch(
      (error: unknown) => new Map(terms.rows.map(({ id }) => [id, error] as const)),
    )
    if (failures.size === 0) forgetScope(scopeOf(terms.rows))
    for (const { id } of terms.rows) if (!failures.has(id)) forgetScope(id)
    await Promise.all(
      terms.rows.filter(({ id }) => failures.has(id)).map(async row => refuse(row, failures.get(row.id))),
    )
    const message = failures.size === 0 ? strings.inbox.decided : strings.inbox.notDecided(failures.size)
    notifications.show({ message, color: failures.size === 0 ? 'teal' : 'red' })
    await cache.invalidateQueries({ queryKey: ['approvals'] })
    remove(key)
  }

  return {
    ...decisions,
    decide(terms: Terms) {
      const key = ++lastKey
      const entry = { ...terms, key, due: Date.now() + UNDO_MS, isSent: false }
      write({ pending: [...read().pending, entry], refused: withoutRows(terms.rows) })
      timers.set(key, { timer: setTimeout(() => void finish(key, terms), UNDO_MS), release: confirmUnload() })
    },
    /** Takes a decision back; by default the latest. */
    undo(key = decisions.pending.findLast(({ isSent }) => !isSent)?.key) {
      if (key !== undefined && stopWaiting(key)) remove(key)
    },
    dismiss: (id: string) => write({ refused: read().refused.filter(({ row }) => row.id !== id) }),
  }
}
