import { Badge, Button, Card, Group, Select, Stack, Table, Text } from '@mantine/core'
import type { Client } from '@muster/client'
import { useQuery } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import { useUserNames } from '#access.ts'
import { api } from '#api.ts'
import { type Operation, useMe, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ActionButton, type Stale } from './actions.tsx'
import { Changes, type Difference } from './changes.tsx'
import { useFilters } from './filters.ts'
import { Section } from './record.tsx'
import { Loaded } from './states.tsx'
import { visible, When } from './text.tsx'

const texts = strings.compare

/** Who wrote a version: the ID of a user, or of another principal with its type; null if that is not known. */
type Author = string | { type: string; id: string | null } | null
type Version = { version: number; label?: string | null; created_at: string; created_by: Author }
type Options = { signal: AbortSignal }

/** Versions that are listed first, and that each request for more adds. */
const SHOWN = 100

/**
 * The versions of a record, the newest first, with author and time. Any two can be compared: the address has their numbers. A
 * version can be made current again.
 */
export function Versions<Row extends Version, Ids extends object>({
  queryKey,
  current,
  ids,
  operations: { list, compare, restore },
  mayRestore = row => row.version !== current,
  stale,
  stateOf = ({ version }) => (version === current ? strings.agents.live : null),
  labelOf = row => row.label,
  extra,
  above,
  differences = changes => <Changes changes={changes} />,
}: {
  queryKey: readonly unknown[]
  /** Number of the version in use. */
  current: number
  /** Names the record in the operations. */
  ids: Ids
  operations: {
    list: Operation &
      ((
        client: Client,
        args: Ids & { limit: number },
        options: Options,
      ) => { all(options: { max: number }): PromiseLike<Row[]> })
    /** Returns the differences of two versions. */
    compare: Operation &
      ((
        client: Client,
        args: Ids & { from: number; to: number },
        options: Options,
      ) => PromiseLike<{ changes: Difference[] }>)
    restore: Operation & ((client: Client, args: Ids & { version: string }) => PromiseLike<unknown>)
  }
  /** Whether a version can be made current again. */
  mayRestore?: (row: Row) => boolean
  /** What a restored version makes stale. */
  stale: Stale
  /** Says what a version is used for; null for nothing. */
  stateOf?: (row: Row) => string | null
  /** What the user wrote on a version. */
  labelOf?: (row: Row) => string | null | undefined
  /** Further actions on a version. */
  extra?: (row: Row) => ReactNode
  /** Shown above the versions. */
  above?: (rows: Row[]) => ReactNode
  /** Shows the differences of two versions. */
  differences?: (changes: Difference[], from: number, to: number) => ReactNode
}) {
  const isAllowed = usePermissions(useProjectId())
  const { filters, setFilters } = useFilters()
  const [shown, setShown] = useState(SHOWN)
  const versions = useQuery({
    queryKey: [...queryKey, 'versions', current, shown],
    queryFn: async ({ signal }) => list(api, { ...ids, limit: SHOWN }, { signal }).all({ max: shown + 1 }),
    placeholderData: previous => previous,
  })
  const open = (from: number, to: number) => setFilters({ from: String(from), to: String(to), node: undefined })
  const [from, to] = [Number(filters.from), Number(filters.to)]
  return (
    <Loaded query={versions} operation={list}>
      {rows => (
        <Stack gap="md">
          {above?.(rows)}
          {from > 0 && to > 0 && (
            <Compared
              rows={rows}
              from={from}
              to={to}
              labelOf={labelOf}
              queryKey={[...queryKey, 'compare', from, to]}
              read={async signal => compare(api, { ...ids, from, to }, { signal })}
              operation={compare}
              differences={differences}
              onChange={open}
              onClose={() => setFilters({ from: undefined, to: undefined, node: undefined })}
            />
          )}
          <Card withBorder padding={0} radius="lg">
            <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={strings.versions}>
              <Table.Tbody>
                {rows.slice(0, shown).map((row, index) => (
                  <VersionRow key={row.version} row={row} label={labelOf(row)} state={stateOf(row)}>
                    {(rows[index + 1] || row.version > 1) && (
                      <Button
                        variant="default"
                        size="xs"
                        onClick={() => open(rows[index + 1]?.version ?? row.version - 1, row.version)}
                      >
                        {texts.withPrevious}
                      </Button>
                    )}
                    {extra?.(row)}
                    {isAllowed(restore) && mayRestore(row) && (
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
          {rows.length > shown && (
            <Group>
              <Button variant="default" onClick={() => setShown(shown + SHOWN)}>
                {strings.more}
              </Button>
            </Group>
          )}
        </Stack>
      )}
    </Loaded>
  )
}

function VersionRow({
  row: { version, created_at, created_by },
  label,
  state,
  children,
}: {
  row: Version
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
        <AuthorAndTime by={created_by} at={created_at} />
      </Table.Td>
      <Table.Td>
        <Group gap="xs" justify="flex-end">
          {children}
        </Group>
      </Table.Td>
    </Table.Tr>
  )
}

/** Who wrote a version, and when. Names of other users are shown to those who may list users. */
function AuthorAndTime({ by, at }: { by: Author; at: string }) {
  const { nameOf } = useUserNames(useProjectId())
  const me = useMe().data
  const { type, id } = typeof by === 'string' ? { type: 'user', id: by } : (by ?? { type: 'unknown', id: null })
  const name = id && (id === me?.id ? me.username : nameOf(id))
  return (
    <Text size="sm" c="dimmed" component="div">
      {name ? visible(name) : (texts.authors[type] ?? texts.authors.unknown)}
      {!name && id && <span className="mono"> {id}</span>}
      {', '}
      <When at={at} />
    </Text>
  )
}

function Compared<Row extends Version>({
  rows,
  from,
  to,
  labelOf,
  queryKey,
  read,
  operation,
  differences,
  onChange,
  onClose,
}: {
  rows: Row[]
  from: number
  to: number
  labelOf: (row: Row) => string | null | undefined
  queryKey: readonly unknown[]
  read: (signal: AbortSignal) => Promise<{ changes: Difference[] }>
  operation: Operation
  differences: (changes: Difference[], from: number, to: number) => ReactNode
  onChange: (from: number, to: number) => void
  onClose: () => void
}) {
  const comparison = useQuery({ queryKey, queryFn: ({ signal }) => read(signal) })
  const numbers = [...new Set([...rows.map(({ version }) => version), from, to])].sort((a, b) => b - a)
  const side = (label: string, number: number, choose: (number: number) => void) => {
    const row = rows.find(({ version }) => version === number)
    const note = (version: number) => {
      const found = rows.find(each => each.version === version)
      return (found && labelOf(found)) ?? null
    }
    return (
      <Stack gap={4} miw={0} flex={1}>
        <Select
          label={label}
          data={numbers.map(version => ({
            value: String(version),
            label: `${strings.version} ${version}${note(version) ? ` – ${visible(note(version) as string)}` : ''}`,
          }))}
          value={String(number)}
          onChange={value => choose(Number(value))}
          allowDeselect={false}
        />
        {row && <AuthorAndTime by={row.created_by} at={row.created_at} />}
      </Stack>
    )
  }
  return (
    <Section
      title={strings.agents.differences(from, to)}
      actions={
        <>
          <Button variant="default" size="xs" onClick={() => onChange(to, from)}>
            {texts.swap}
          </Button>
          <Button variant="default" size="xs" onClick={onClose}>
            {strings.close}
          </Button>
        </>
      }
    >
      <Group gap="sm" align="flex-start" wrap="wrap">
        {side(strings.agents.before, from, number => onChange(number, to))}
        {side(strings.agents.after, to, number => onChange(from, number))}
      </Group>
      <Loaded query={comparison} operation={operation}>
        {({ changes }) => differences(changes, from, to)}
      </Loaded>
    </Section>
  )
}
