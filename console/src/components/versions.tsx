import { Badge, Button, Card, Group, Modal, SimpleGrid, Stack, Table, Text } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { strings } from '../strings.ts'
import { ActionButton, type Stale } from './actions.tsx'
import { Loaded } from './states.tsx'
import { visible, When } from './text.tsx'
import { Value } from './value.tsx'

type Version = { id: string; version: number; label: string | null; created_at: string }
type Change = { path: string; before?: unknown; after?: unknown }

/** The versions of a record, the newest first: each can be compared with the one before and made current again. */
export function Versions({
  queryKey,
  current,
  list,
  compare,
  restore,
  stale,
  actions,
}: {
  queryKey: readonly unknown[]
  /** Number of the version in use. */
  current: number
  list: (signal: AbortSignal) => Promise<Version[]>
  compare: (from: number, to: number, signal: AbortSignal) => Promise<{ changes: Change[] }>
  /** Makes a version current again; undefined if the user may not. */
  restore?: (version: number) => Promise<unknown>
  /** What a restored version makes stale. */
  stale: Stale
  /** Permissions of the list and of the comparison. */
  actions: { list: string; get: string }
}) {
  const [compared, setCompared] = useState<number | null>(null)
  const versions = useQuery({ queryKey: [...queryKey, 'versions', current], queryFn: ({ signal }) => list(signal) })
  return (
    <Loaded query={versions} action={actions.list}>
      {rows => (
        <>
          <Card withBorder padding={0} radius="lg">
            <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={strings.agents.versions}>
              <Table.Tbody>
                {rows.map(({ id, version, label, created_at }) => (
                  <Table.Tr key={id}>
                    <Table.Td>
                      <Group gap="sm">
                        <Text fw={600}>
                          {strings.agents.version} {version}
                        </Text>
                        {version === current && <Badge variant="default">{strings.agents.live}</Badge>}
                      </Group>
                      {label && <Text size="sm">{visible(label)}</Text>}
                    </Table.Td>
                    <Table.Td>
                      <Text size="sm" c="dimmed" component="div">
                        <When at={created_at} />
                      </Text>
                    </Table.Td>
                    <Table.Td>
                      <Group gap="xs" justify="flex-end">
                        {version > 1 && (
                          <Button variant="default" size="xs" onClick={() => setCompared(version)}>
                            {strings.agents.compare}
                          </Button>
                        )}
                        {restore && version !== current && (
                          <ActionButton
                            label={strings.agents.restore}
                            run={() => restore(version)}
                            stale={stale}
                            message={strings.agents.restored(version)}
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
            {compared !== null && (
              <Comparison
                queryKey={[...queryKey, 'compare', compared]}
                read={signal => compare(compared - 1, compared, signal)}
                action={actions.get}
              />
            )}
          </Modal>
        </>
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
  read: (signal: AbortSignal) => Promise<{ changes: Change[] }>
  action: string
}) {
  const comparison = useQuery({ queryKey, queryFn: ({ signal }) => read(signal) })
  return (
    <Loaded query={comparison} action={action}>
      {({ changes }) =>
        changes.length === 0 ? (
          <Text c="dimmed">{strings.agents.same}</Text>
        ) : (
          <Stack gap="lg">
            {changes.map(({ path, before, after }) => (
              <Stack gap={6} key={path}>
                <Text fw={600} className="mono">
                  {visible(path)}
                </Text>
                <SimpleGrid cols={{ base: 1, sm: 2 }}>
                  {(
                    [
                      [strings.agents.before, before],
                      [strings.agents.after, after],
                    ] as const
                  ).map(([side, value]) => (
                    <Stack gap={2} key={side}>
                      <Text size="sm" c="dimmed">
                        {side}
                      </Text>
                      <Value value={value ?? null} label={`${path} ${side}`} />
                    </Stack>
                  ))}
                </SimpleGrid>
              </Stack>
            ))}
          </Stack>
        )
      }
    </Loaded>
  )
}
