import { Anchor, Card, Group, Pagination, Table, Text, TextInput } from '@mantine/core'
import { IconSearch } from '@tabler/icons-react'
import type { UseQueryResult } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { strings } from '../strings.ts'
import { Loaded, NothingMatches } from './states.tsx'

export const PAGE_ROWS = 25

export type Column<Row> = { title: string; cell: (row: Row) => ReactNode; isWide?: boolean }

/** The records of a page, and the number of all. */
export type PageOf<Row> = { data: Row[]; total: number }

/** The filter of a list by text; undefined without one. */
export function SearchField({
  value = '',
  onChange,
}: {
  value?: string
  onChange: (value: string | undefined) => void
}) {
  return (
    <TextInput
      aria-label={strings.agents.search}
      placeholder={strings.agents.search}
      leftSection={<IconSearch size={16} />}
      value={value}
      onChange={event => onChange(event.currentTarget.value || undefined)}
      w={{ base: '100%', xs: 280 }}
    />
  )
}

/** A list of records: filters, a table that becomes cards on a phone, and pages. */
export function ListView<Row extends { id: string }>({
  label,
  query,
  action,
  columns,
  filters,
  isFiltered,
  onClear,
  empty,
  page,
  onPage,
}: {
  label: string
  query: UseQueryResult<PageOf<Row>>
  action: string
  columns: Column<Row>[]
  filters?: ReactNode
  isFiltered: boolean
  onClear: () => void
  empty: ReactNode
  page: number
  onPage: (page: number) => void
}) {
  return (
    <>
      {filters && <Group gap="sm">{filters}</Group>}
      <Loaded query={query} action={action}>
        {({ data, total }) => {
          if (data.length === 0 && isFiltered) return <NothingMatches onClear={onClear} />
          if (data.length === 0) return empty
          return (
            <>
              <Card withBorder padding={0} radius="lg">
                <Table highlightOnHover verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={label}>
                  <Table.Thead>
                    <Table.Tr>
                      {columns.map(({ title }) => (
                        <Table.Th key={title}>
                          <Text size="sm" c="dimmed" fw={600}>
                            {title}
                          </Text>
                        </Table.Th>
                      ))}
                    </Table.Tr>
                  </Table.Thead>
                  <Table.Tbody>
                    {data.map(row => (
                      <Table.Tr key={row.id}>
                        {columns.map(({ title, cell, isWide }) => (
                          <Table.Td key={title} w={isWide ? '50%' : undefined} data-title={isWide ? undefined : title}>
                            {cell(row)}
                          </Table.Td>
                        ))}
                      </Table.Tr>
                    ))}
                  </Table.Tbody>
                </Table>
              </Card>
              {total > PAGE_ROWS && (
                <Pagination
                  total={Math.ceil(total / PAGE_ROWS)}
                  value={page}
                  onChange={onPage}
                  getControlProps={control => ({ 'aria-label': `${control} page` })}
                  getItemProps={number => ({ 'aria-label': `Page ${number}` })}
                />
              )}
            </>
          )
        }}
      </Loaded>
    </>
  )
}

/** A link to a view, which names a record. */
export function RecordLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <Anchor component={Link} to={to} fw={600} c="inherit" underline="hover" style={{ overflowWrap: 'anywhere' }}>
      {children}
    </Anchor>
  )
}
