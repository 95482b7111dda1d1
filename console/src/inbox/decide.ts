import { notifications } from '@mantine/notifications'
import { type Approval, errorOf } from '@muster/client'
import { approveApproval, getApproval, rejectApproval, resolveApprovals } from '@muster/client/operations'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { api } from '#api.ts'
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

/**
 * Decisions that wait for the time in which they can be undone. They are kept by the view only: what has not been sent when
 * it is left, or its tab closed, is forgotten.
 */
export function useDecisions() {
  const cache = useQueryClient()
  const [pending, setPending] = useState<PendingDecision[]>([])
  const [refused, setRefused] = useState<Refusal[]>([])
  const timers = useRef(new Map<number, ReturnType<typeof setTimeout>>())
  const lastKey = useRef(0)
  useEffect(() => {
    const waiting = timers.current
    return () => waiting.forEach(clearTimeout)
  }, [])

  const remove = (key: number) => setPending(all => all.filter(each => each.key !== key))

  const refuse = async (row: Approval, error: unknown) => {
    const current = await getApproval(api, { approval_id: row.id }).catch(() => null)
    if (current && current.status !== 'pending') forgetScope(row.id)
    setRefused(all => [...all.filter(each => each.row.id !== row.id), { row, error, current }])
  }

  const finish = async (key: number, terms: Terms) => {
    timers.current.delete(key)
    setPending(all => all.map(each => (each.key === key ? { ...each, isSent: true } : each)))
    const failures = await send(terms).catch(
      (error: unknown) => new Map(terms.rows.map(({ id }) => [id, error] as const)),
    )
    if (failures.size === 0) forgetScope(scopeOf(terms.rows))
    for (const { id } of terms.rows) if (!failures.has(id)) forgetScope(id)
    await Promise.all(
      terms.rows.filter(({ id }) => failures.has(id)).map(async row => refuse(row, failures.get(row.id))),
    )
    if (failures.size < terms.rows.length) notifications.show({ message: strings.inbox.decided, color: 'teal' })
    await cache.invalidateQueries({ queryKey: ['approvals'] })
    remove(key)
  }

  return {
    pending,
    refused,
    decide(terms: Terms) {
      const key = ++lastKey.current
      setRefused(all => all.filter(({ row }) => !terms.rows.some(({ id }) => id === row.id)))
      setPending(all => [...all, { ...terms, key, due: Date.now() + UNDO_MS, isSent: false }])
      timers.current.set(
        key,
        setTimeout(() => void finish(key, terms), UNDO_MS),
      )
    },
    /** Takes a decision back; by default the latest. */
    undo(key = pending.findLast(({ isSent }) => !isSent)?.key) {
      if (key === undefined || !timers.current.has(key)) return
      clearTimeout(timers.current.get(key))
      timers.current.delete(key)
      remove(key)
    },
    dismiss: (id: string) => setRefused(all => all.filter(({ row }) => row.id !== id)),
  }
}
