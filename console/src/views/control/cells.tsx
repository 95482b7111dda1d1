import { Alert, Badge, Stack, Table, Text } from '@mantine/core'
import type { SystemCell } from '@muster/client'
import { listCells } from '@muster/client/operations'
import { IconAlertTriangle } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api, every, POLL_MS } from '#api.ts'
import { TableHead } from '#components/list.tsx'
import { Section } from '#components/record.tsx'
import { Loaded } from '#components/states.tsx'
import { elapsedText, sizeText, visible } from '#components/text.tsx'
import * as strings from '#strings.ts'

const texts = strings.cells

const COLORS: Record<SystemCell['state'], string> = { open: 'teal', closed: 'gray', moving: 'yellow', down: 'red' }

/** The databases of the deployment; nothing in a deployment without cells. */
export function Cells() {
  const cells = useQuery({
    queryKey: ['system', 'cells'],
    queryFn: async ({ signal }) => listCells(api, {}, { signal }).all(),
    refetchInterval: every(POLL_MS),
  })
  // Most deployments have only home: without an answer nothing is announced.
  if (cells.isPending || cells.data?.length === 1) return null
  return (
    <Section title={texts.title}>
      <Loaded query={cells} operation={listCells}>
        {rows => (
          <Stack gap="md">
            <Problems cells={rows} />
            <CellTable cells={rows} />
          </Stack>
        )}
      </Loaded>
    </Section>
  )
}

const namesOf = (cells: SystemCell[]): string => cells.map(({ name }) => name).join(', ')

function Problems({ cells }: { cells: SystemCell[] }) {
  const silent = cells.filter(({ reachable, state }) => !reachable && state !== 'down')
  const late = cells.filter(({ reachable, copies_connected }) => reachable && copies_connected === false)
  return (
    <>
      {silent.length > 0 && (
        <Alert color="red" icon={<IconAlertTriangle />} title={texts.silent(namesOf(silent))} role="alert">
          <Text size="sm">{texts.silentText}</Text>
        </Alert>
      )}
      {late.length > 0 && (
        <Alert color="yellow" icon={<IconAlertTriangle />} title={texts.late(namesOf(late))}>
          <Text size="sm">{texts.lateText}</Text>
        </Alert>
      )}
    </>
  )
}

function CellTable({ cells }: { cells: SystemCell[] }) {
  return (
    <Table className="rows" verticalSpacing="sm" aria-label={texts.title}>
      <TableHead
        titles={[texts.cell, strings.state, texts.projects, texts.size, texts.release, texts.lag, texts.answers]}
      />
      <Table.Tbody>
        {cells.map(cell => (
          <Table.Tr key={cell.name}>
            <Table.Td w="30%">
              <Text size="sm" fw={600}>
                {texts.named(visible(cell.name), cell.number)}
              </Text>
              <Text size="sm" c="dimmed" className="mono">
                {visible(cell.address ?? texts.noKey)}
              </Text>
            </Table.Td>
            <Table.Td data-title={strings.state}>
              <Badge variant="dot" color={COLORS[cell.state]} miw="max-content">
                {texts.states[cell.state]}
              </Badge>
              {cell.state !== 'open' && (
                <Text size="sm" c="dimmed">
                  {texts.stateTexts[cell.state]}
                </Text>
              )}
            </Table.Td>
            <Table.Td data-title={texts.projects}>{cell.projects?.toLocaleString() ?? strings.none}</Table.Td>
            <Table.Td data-title={texts.size}>{cell.bytes === null ? strings.none : sizeText(cell.bytes)}</Table.Td>
            <Table.Td data-title={texts.release}>{visible(cell.release ?? strings.none)}</Table.Td>
            <Table.Td data-title={texts.lag}>{lagText(cell)}</Table.Td>
            <Table.Td data-title={texts.answers}>
              <Badge variant="dot" color={cell.reachable ? 'teal' : 'red'} miw="max-content">
                {cell.reachable ? texts.reachable : texts.unreachable}
              </Badge>
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  )
}

/** How late the copies of users and policies in a cell are. */
function lagText({ copies, copies_connected, lag_bytes, lag_seconds }: SystemCell): string {
  if (copies === 'triggers') return texts.noLag
  if (lag_bytes === null) return strings.none
  const parts = [sizeText(lag_bytes), lag_seconds !== null && lag_seconds >= 1 && elapsedText(lag_seconds)]
  return [...parts, copies_connected === false && texts.notConnected].filter(Boolean).join(', ')
}
