import type { Client } from '@muster/client'
import { type UseQueryOptions, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { api } from '#api.ts'
import { type Operation, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ActionButton, type Stale } from './actions.tsx'
import { Loaded } from './states.tsx'

/** Reads the record that an address names, and shows it or the state of the query. */
export function RecordPage<Row, Ids>({
  queryKey,
  get,
  ids,
  refetchInterval,
  children,
}: {
  queryKey: readonly unknown[]
  get: Operation & ((client: Client, ids: Ids, options: { signal: AbortSignal }) => PromiseLike<Row>)
  ids: Ids
  refetchInterval?: UseQueryOptions<Row>['refetchInterval']
  children: (record: Row) => ReactNode
}) {
  const query = useQuery<Row>({
    queryKey,
    queryFn: async ({ signal }) => get(api, ids, { signal }),
    refetchInterval,
  })
  return (
    <Loaded query={query} operation={get}>
      {children}
    </Loaded>
  )
}

/** Deletes the record of a page after a question, for those who may, and opens the list. */
export function RemoveButton<Ids>({
  operation,
  ids,
  question,
  stale,
  list,
  size = 'sm',
}: {
  operation: Operation & ((client: Client, ids: Ids) => PromiseLike<unknown>)
  ids: Ids
  question: ReactNode
  stale: Stale
  /** Path of the view of the list, below the project. */
  list: string
  size?: string
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  if (!isAllowed(operation)) return null
  return (
    <ActionButton
      label={strings.remove}
      size={size}
      color="red"
      question={question}
      run={async () => operation(api, ids)}
      stale={stale}
      onDone={() => void navigate({ to: `/p/${projectId}/${list}` })}
    />
  )
}
