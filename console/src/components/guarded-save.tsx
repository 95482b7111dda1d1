import { isMusterError } from '@muster/client'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import * as strings from '#strings.ts'
import type { Stale } from './actions.tsx'
import { Conflict } from './conflict.tsx'
import type { Values } from './schema-form.tsx'

/** A record as read. */
export type Read<Row> = { record: Row; etag: string | null }

/** The fields of a record that differ from another one. */
const differenceOf = (record: object, other: object | undefined): Values =>
  Object.fromEntries(
    Object.entries(record).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify((other as Values | undefined)?.[name]),
    ),
  )

/**
 * Saves a form of a record. If another person has changed the record since it was read, both changes are shown, and the
 * user chooses. `base` is the record that the form begins with; `formKey` changes with it.
 */
export function useGuardedSave<Row extends object>({
  title = strings.form.changed,
  first,
  read,
  write,
  stale,
  onDone,
}: {
  /** Says that another person has changed the record. */
  title?: string
  /** Undefined for a new record. */
  first?: Read<Row>
  read: () => Promise<Read<Row>>
  write: (change: Values, options: { ifMatch?: string }) => Promise<{ id: string }>
  stale: Stale
  onDone: (id: string) => void
}) {
  const cache = useQueryClient()
  const [base, setBase] = useState(first)
  const [conflict, setConflict] = useState<(Read<Row> & { change: Values }) | null>(null)
  const save = useMutation({
    mutationFn: async ({ change, etag }: { change: Values; etag?: string | null }) =>
      write(change, etag ? { ifMatch: etag } : {}),
    onSuccess: ({ id }) => {
      onDone(id)
      return Promise.all(stale.map(queryKey => cache.invalidateQueries({ queryKey })))
    },
    onError: async (error, { change }) => {
      if (base && isMusterError(error, 'PRECONDITION_FAILED')) setConflict({ ...(await read()), change })
    },
  })
  const dialog: ReactNode = conflict && (
    <Conflict
      title={title}
      theirs={differenceOf(conflict.record, base?.record)}
      yours={conflict.change}
      onOverwrite={() => {
        setConflict(null)
        save.mutate({ change: conflict.change, etag: conflict.etag })
      }}
      onTake={() => {
        setBase(conflict)
        setConflict(null)
        save.reset()
      }}
      onClose={() => setConflict(null)}
    />
  )
  return {
    base: base?.record,
    formKey: base?.etag ?? 'new',
    save: (change: Values) => save.mutate({ change, etag: base?.etag }),
    isPending: save.isPending,
    error: conflict ? null : save.error,
    dialog,
  }
}
