import { Badge, Button, Card, Group, Modal, Stack, Table, Text } from '@mantine/core'
import type { Client, Comparison as Differences } from '@muster/client'
import { useQuery } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import { api } from '#api.ts'
import { type Operation, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ActionButton, type Stale } from './actions.tsx'
import { Changes } from './changes.tsx'
import { Loaded } from './states.tsx'
import { visible, When } from './text.tsx'

type Version = { version: number; label?: string | null; created_at: string }
type Compared = Pick<Differences, 'changes'>
type Options = { signal: AbortSignal }

/** Versions that are listed. */
const SHOWN = 100

/** The versions of a record, the newest first: each can be compared with the one before and made current again. */
export function Versions<Row extends Version, Ids extends object>({
  queryKey,
  current,
  ids,
  operations: { list, compare, restore },
  mayRestore = true,
  onCompare,
  stale,
  stateOf = version => (version === current ? strings.agents.live : null),
  labelOf = row => row.label,
  extra,
  above,
}: {
  queryKey: readonly unknown[]
  /** Number of the version in use. */
  current: number
  /** Names the record in the operations. */
  ids: Ids
  operations: {
    list: Operation &
      ((client: Client, args: Ids & { limit: number }, options: Options) => { page(): PromiseLike<{ data: Row[] }> })
    /** Returns the differences of two versions, which a dialog shows. */
    compare?: Operation &
      ((client: Client, args: Ids & { from: number; to: number }, options: Options) => PromiseLike<Compared>)
    restore: Operation & ((client: Client, args: Ids & { version: string }) => PromiseLike<unknown>)
  }
  /** Whether the record can be changed. */
  mayRestore?: boolean
  /** Shows the differences in another way than the dialog. */
  onCompare?: (from: number, to: number) => void
  /** What a restored version makes stale. */
  stale: Stale
  /** Says what a version is used for; null for nothing. */
  stateOf?: (version: number) => string | null
  /** What the user wrote on a version. */
  labelOf?: (row: Row) => string | null | undefined
  /** Further actions on a version. */
  extra?: (row: Row) => ReactNode
  /** Shown above the versions. */
  above?: (rows: Row[]) => ReactNode
}) {
  const isAllowed = usePermissions(useProjectId())
  const [compared, setCompared] = useState<number | null>(null)
  const versions = useQuery({
    queryKey: [...queryKey, 'versions', current],
    queryFn: async ({ signal }) => (await list(api, { ...ids, limit: SHOWN }, { signal }).page()).data,
  })
  return (
    <Loaded query={versions} operation={list}>
      {rows => (
        <Stack gap="md">
          {above?.(rows)}
          <Card withBorder padding={0} radius="lg">
            <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={strings.versions}>
              <Table.Tbody>
                {rows.map(row => (
                  <VersionRow
                    key={row.version}
                    version={row.version}
                    createdAt={row.created_at}
                    label={labelOf(row)}
                    state={stateOf(row.version)}
                  >
                    {row.version > 1 && (
                      <Button
                        variant="default"
                        size="xs"
                        onClick={() => (onCompare ? onCompare(row.version - 1, row.version) : setCompared(row.version))}
                      >
                        {strings.agents.compare}
                      </Button>
                    )}
                    {extra?.(row)}
                    {mayRestore && isAllowed(restore) && row.version !== current && (
                      <ActionButton
                        label={strings.agents.restore}
                        run={async () => restore(api, { ...ids, version: String(row.version) })}
                        stale={stale}
                        message={strings.agents.restored(row.version)}
                      />
                    )}
                  </VersionRow>
                ))}
              </Table.Tbody>
            </Table>
          </Card>
          <Modal
            opened={compared !== null}
            onClose={() => setCompared(null)}
            title={compared !== null && strings.agents.differences(compared - 1, compared)}
            size="xl"
          >
            {compared !== null && compare && (
              <Comparison
                queryKey={[...queryKey, 'compare', compared]}
                read={async signal => compare(api, { ...ids, from: compared - 1, to: compared }, { signal })}
                operation={compare}
              />
            )}
          </Modal>
        </Stack>
      )}
    </Loaded>
  )
}

function VersionRow({
  version,
  createdAt,
  label,
  state,
  children,
}: {
  version: number
  createdAt: string
  label: string | null | undefined
  state: string | null
  children: ReactNode
}) {
  return (
    <Table.Tr>
      <Table.Td>
        <Group gap="sm">
          <Text fw={600}>
            {strings.version} {version}
          </Text>
          {state && <Badge variant="default">{state}</Badge>}
        </Group>
        {label && <Text size="sm">{visible(label)}</Text>}
      </Table.Td>
      <Table.Td>
        <Text size="sm" c="dimmed" component="div">
          <When at={createdAt} />
        </Text>
      </Table.Td>
      <Table.Td>
        <Group gap="xs" justify="flex-end">
          {children}
        </Group>
      </Table.Td>
    </Table.Tr>
  )
}

function Comparison({
  queryKey,
  read,
  operation,
}: {
  queryKey: readonly unknown[]
  read: (signal: AbortSignal) => Promise<Compared>
  operation: Operation
}) {
  const comparison = useQuery({ queryKey, queryFn: ({ signal }) => read(signal) })
  return (
    <Loaded query={comparison} operation={operation}>
      {({ changes }) => <Changes changes={changes} />}
    </Loaded>
  )
}
