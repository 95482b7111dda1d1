import {
  Anchor,
  Card,
  Group,
  Pagination,
  Select,
  Stack,
  Table,
  Text,
  TextInput,
  type TextInputProps,
} from '@mantine/core'
import { IconSearch } from '@tabler/icons-react'
import { type UseQueryResult, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { type ReactNode, useEffect, useState } from 'react'
import { every } from '#api.ts'
import type { Choice } from '#choices.ts'
import type { Operation } from '#projects.ts'
import * as strings from '#strings.ts'
import { DraftScope } from './draft.tsx'
import { type Filters, useFilters } from './filters.ts'
import { SavedViews } from './saved-views.tsx'
import { Loaded, NothingMatches } from './states.tsx'
import { visible } from './text.tsx'

export const PAGE_ROWS = 25

/** A column of a list; one of actions has no title. */
export type Column<Row> = { title: string; cell: (row: Row) => ReactNode; isWide?: boolean }

/** The records of a page, and the number of all. */
export type PageOf<Row> = { data: Row[]; total: number }

type ListState<Row> = {
  query: UseQueryResult<PageOf<Row>>
  filters: Filters
  setFilters: (change: Filters) => void
}

/**
 * Reads the page of a list that the address names. `read` gets the filters and the bounds of the page; `pollMs` is the
 * interval in which the list is read again, which may depend on its content.
 */
export function useList<Row>(
  key: readonly unknown[],
  read: (filters: Filters, bounds: { limit: number; offset: number }, signal: AbortSignal) => Promise<PageOf<Row>>,
  {
    pollMs,
    ...options
  }: {
    pollMs?: number | ((rows: Row[]) => number | undefined)
    enabled?: boolean
    refetchOnWindowFocus?: boolean
  } = {},
): ListState<Row> {
  const { filters, setFilters } = useFilters()
  const offset = (pageOf(filters) - 1) * PAGE_ROWS
  const query = useQuery<PageOf<Row>>({
    queryKey: [...key, filters],
    queryFn: ({ signal }) => read(filters, { limit: PAGE_ROWS, offset }, signal),
    placeholderData: previous => previous,
    refetchInterval: query => {
      const ms = typeof pollMs === 'function' ? pollMs(query.state.data?.data ?? []) : pollMs
      return ms ? every(ms)(query) : false
    },
    ...options,
  })
  return { query, filters, setFilters }
}

/** Returns the page that the address names. */
export const pageOf = ({ page }: Filters): number => Math.max(1, Math.floor(Number(page)) || 1)

/** A filter of a list by text. */
export function SearchField({ name = 'q', label = strings.list.search }: { name?: string; label?: string }) {
  const { filters, setFilters } = useFilters()
  return (
    <TextInput
      aria-label={label}
      placeholder={label}
      leftSection={<IconSearch size={16} />}
      value={filters[name] ?? ''}
      onChange={event => setFilters({ [name]: event.currentTarget.value })}
      w={{ base: '100%', xs: 280 }}
    />
  )
}

/** A filter by a value that is applied as a whole: with Enter, or when the field is left. */
export function EntryField({
  name,
  label,
  width = 180,
  ...input
}: { name: string; label: string; width?: number } & Pick<
  TextInputProps,
  'type' | 'min' | 'step' | 'inputMode' | 'leftSection' | 'maxLength'
>) {
  const { filters, setFilters } = useFilters()
  const applied = filters[name] ?? ''
  const [entered, setEntered] = useState(applied)
  useEffect(() => setEntered(applied), [applied])
  const apply = () => {
    if (entered.trim() !== applied) setFilters({ [name]: entered.trim() })
  }
  return (
    <TextInput
      aria-label={label}
      placeholder={label}
      {...input}
      value={entered}
      onChange={event => setEntered(event.currentTarget.value)}
      onBlur={apply}
      onKeyDown={event => event.key === 'Enter' && apply()}
      w={{ base: '100%', xs: width }}
    />
  )
}

/** A filter by a time, which the address has in UTC. */
export function TimeField({ name, label }: { name: string; label: string }) {
  const { filters, setFilters } = useFilters()
  const at = timeOf(filters[name])
  return (
    <TextInput
      type="datetime-local"
      label={label}
      step={1}
      value={at ? localText(at) : ''}
      onChange={({ currentTarget: { value } }) =>
        setFilters({ [name]: value ? new Date(value).toISOString() : undefined })
      }
      w={{ base: '100%', xs: 220 }}
    />
  )
}

/** Returns the time of a filter; undefined without a valid one. */
export const timeOf = (value: string | undefined): Date | undefined =>
  value && !Number.isNaN(Date.parse(value)) ? new Date(value) : undefined

/** Returns a time to the second in the format of an input, in the zone of the browser. */
const localText = (at: Date): string =>
  new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19)

/** A filter of a list by one of several values. */
export function ChoiceField({ name, label, choices }: { name: string; label: string; choices: Choice[] }) {
  const { filters, setFilters } = useFilters()
  return (
    <Select
      aria-label={label}
      data={[{ value: '', label: strings.list.all(label) }, ...choices]}
      value={filters[name] ?? ''}
      allowDeselect={false}
      onChange={next => setFilters({ [name]: next ?? undefined })}
      w={{ base: '100%', xs: 180 }}
    />
  )
}

/** The titles of the columns of a table. */
export function TableHead({ titles }: { titles: string[] }) {
  return (
    <Table.Thead>
      <Table.Tr>
        {titles.map(title => (
          <Table.Th key={title}>
            <Text size="sm" c="dimmed" fw={600} style={{ whiteSpace: 'nowrap' }}>
              {title}
            </Text>
          </Table.Th>
        ))}
      </Table.Tr>
    </Table.Thead>
  )
}

/** A list of records: filters, a table that becomes cards on a phone, and pages. */
export function ListView<Row>({
  label,
  list: { query, filters, setFilters },
  operation,
  columns,
  fields,
  empty,
  choices = [],
  view,
  keyOf = row => (row as { id: string }).id,
}: {
  label: string
  list: ListState<Row>
  /** The operation that reads the list. */
  operation: Operation
  columns: Column<Row>[]
  /** Filters above the list. */
  fields?: ReactNode
  /** Shown while there is no record. */
  empty: ReactNode
  /** Filters that choose another list: an empty one is not one in which nothing matches. */
  choices?: string[]
  /** Name under which the filters of the list can be saved. */
  view?: string
  keyOf?: (row: Row) => string
}) {
  const applied = Object.keys(filters).filter(name => !['page', 'tab', ...choices].includes(name))
  return (
    <Stack gap="lg">
      {fields && (
        <Group gap="sm" align="end">
          {fields}
          {view && <SavedViews view={view} />}
        </Group>
      )}
      <Loaded query={query} operation={operation}>
        {({ data, total }) => {
          if (data.length === 0 && applied.length > 0)
            return (
              <NothingMatches onClear={() => setFilters(Object.fromEntries(applied.map(name => [name, undefined])))} />
            )
          if (data.length === 0) return empty
          return (
            <Stack gap="lg">
              <Card withBorder padding={0} radius="lg">
                <Table highlightOnHover verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={label}>
                  <TableHead titles={columns.map(({ title }) => title)} />
                  <Table.Tbody>
                    {data.map(row => (
                      <DraftScope key={keyOf(row)} value={keyOf(row)}>
                        <Table.Tr>
                          {columns.map(({ title, cell, isWide }) => (
                            <Table.Td
                              key={title}
                              className={isWide ? 'wide' : undefined}
                              data-title={isWide || !title ? undefined : title}
                            >
                              {cell(row)}
                            </Table.Td>
                          ))}
                        </Table.Tr>
                      </DraftScope>
                    ))}
                  </Table.Tbody>
                </Table>
              </Card>
              <Pages total={total} />
            </Stack>
          )
        }}
      </Loaded>
    </Stack>
  )
}

/** Leads to the pages of a list. */
export function Pages({ total, rows = PAGE_ROWS }: { total: number; rows?: number }) {
  const { filters, setFilters } = useFilters()
  if (total <= rows) return null
  return (
    <Pagination
      total={Math.ceil(total / rows)}
      value={pageOf(filters)}
      onChange={page => setFilters({ page: page > 1 ? String(page) : undefined })}
      getControlProps={control => ({ 'aria-label': `${control} page` })}
      getItemProps={number => ({ 'aria-label': `Page ${number}` })}
    />
  )
}

/** The name of a record as a link to its view, with its description. */
export function NameCell({ to, name, description }: { to: string; name: string; description: string | null }) {
  return (
    <>
      <RecordLink to={to}>{visible(name)}</RecordLink>
      {description && (
        <Text size="sm" c="dimmed" lineClamp={1}>
          {visible(description)}
        </Text>
      )}
    </>
  )
}

/** A link to a view, which names a record. */
export function RecordLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <Anchor
      component={Link}
      to={to}
      draggable={false}
      fw={600}
      c="inherit"
      underline="hover"
      style={{ overflowWrap: 'anywhere' }}
    >
      {children}
    </Anchor>
  )
}
