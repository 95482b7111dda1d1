import { Badge, Button, Card, Group, Modal, Stack, Table, Text } from '@mantine/core'
import type { Comparison as Differences } from '@muster/client'
import { useQuery } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import * as strings from '#strings.ts'
import { ActionButton, type Stale } from './actions.tsx'
import { Changes } from './changes.tsx'
import { Loaded } from './states.tsx'
import { visible, When } from './text.tsx'

type Version = { id: string; version: number; label: string | null; created_at: string }
type Compared = Pick<Differences, 'changes'>

/** The versions of a record, the newest first: each can be compared with the one before and made current again. */
export function Versions<Row extends Version>({
  queryKey,
  current,
  list,
  compare,
  onCompare,
  restore,
  stale,
  actions,
  stateOf = version => (version === current ? strings.agents.live : null),
  extra,
  above,
}: {
  queryKey: readonly unknown[]
  /** Number of the version in use. */
  current: number
  list: (signal: AbortSignal) => Promise<Row[]>
  /** Reads the differences of two versions, which a dialog shows. */
  compare?: (from: number, to: number, signal: AbortSignal) => Promise<Compared>
  /** Shows the differences in another way than the dialog. */
  onCompare?: (from: number, to: number) => void
  /** Makes a version current again; undefined if the user may not. */
  restore?: (version: number) => Promise<unknown>
  /** What a restored version makes stale. */
  stale: Stale
  /** Permissions of the list and of the comparison. */
  actions: { list: string; get: string }
  /** Says what a version is used for; null for nothing. */
  stateOf?: (version: number) => string | null
  /** Further actions on a version. */
  extra?: (row: Row) => ReactNode
  /** Shown above the versions. */
  above?: (rows: Row[]) => ReactNode
}) {
  const [compared, setCompared] = useState<number | null>(null)
  const versions = useQuery({ queryKey: [...queryKey, 'versions', current], queryFn: ({ signal }) => list(signal) })
  return (
    <Loaded query={versions} action={actions.list}>
      {rows => (
        <Stack gap="md">
          {above?.(rows)}
          <Card withBorder padding={0} radius="lg">
            <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={strings.agents.versions}>
              <Table.Tbody>
                {rows.map(row => (
                  <Table.Tr key={row.id}>
                    <Table.Td>
                      <Group gap="sm">
                        <Text fw={600}>
                          {strings.agents.version} {row.version}
                        </Text>
                        {stateOf(row.version) && <Badge variant="default">{stateOf(row.version)}</Badge>}
                      </Group>
                      {row.label && <Text size="sm">{visible(row.label)}</Text>}
                    </Table.Td>
                    <Table.Td>
                      <Text size="sm" c="dimmed" component="div">
                        <When at={row.created_at} />
                      </Text>
                    </Table.Td>
                    <Table.Td>
                      <Group gap="xs" justify="flex-end">
                        {row.version > 1 && (
                          <Button
                            variant="default"
                            size="xs"
                            onClick={() =>
                              onCompare ? onCompare(row.version - 1, row.version) : setCompared(row.version)
                            }
                          >
                            {strings.agents.compare}
                          </Button>
                        )}
                        {extra?.(row)}
                        {restore && row.version !== current && (
                          <ActionButton
                            label={strings.agents.restore}
                            run={() => restore(row.version)}
                            stale={stale}
                            message={strings.agents.restored(row.version)}
                          />
                        )}
                      </Group>
                    </Table.Td>
                  </Table.Tr>
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
                read={signal => compare(compared - 1, compared, signal)}
                action={actions.get}
              />
            )}
          </Modal>
        </Stack>
      )}
    </Loaded>
  )
}

function Comparison({
  queryKey,
  read,
  action,
}: {
  queryKey: readonly unknown[]
  read: (signal: AbortSignal) => Promise<Compared>
  action: string
}) {
  const comparison = useQuery({ queryKey, queryFn: ({ signal }) => read(signal) })
  return (
    <Loaded query={comparison} action={action}>
      {({ changes }) => <Changes changes={changes} />}
    </Loaded>
  )
}
