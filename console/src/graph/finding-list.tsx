import { Alert, Badge, Button, Group, Stack, Text } from '@mantine/core'
import type { Finding } from '@muster/client'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'
import { type Findings, placeOf } from './definition.ts'

/** Findings that are shown. */
const SHOWN = 50

/** Problems and warnings; one about a node or an edge leads to it. */
export function FindingList({
  findings: { problems, warnings },
  lists,
  nameOf,
  onSelect,
}: {
  findings: Findings
  lists: { nodes: string; edges: string }
  nameOf: (list: string, place: number) => string | undefined
  onSelect: (list: string, place: number, name: string) => void
}) {
  const row = (finding: Finding, isProblem: boolean) => {
    const list = [lists.nodes, lists.edges].find(each => placeOf(finding, each) !== undefined)
    const place = list === undefined ? undefined : placeOf(finding, list)
    const name = list === undefined || place === undefined ? undefined : nameOf(list, place)
    return (
      <Alert
        key={`${isProblem}${finding.path}${finding.code}${finding.message}`}
        p="sm"
        color={isProblem ? 'red' : 'orange'}
      >
        <Group gap="xs" mb={4}>
          <Badge size="sm" variant={isProblem ? 'filled' : 'default'} color="red.9">
            {isProblem ? strings.graph.marks.problem : strings.graph.marks.warning}
          </Badge>
          <Text size="xs" className="mono">
            {visible(finding.path)}
          </Text>
        </Group>
        <Text size="sm">{visible(finding.message)}</Text>
        {name !== undefined && (
          <Button
            size="compact-xs"
            variant="default"
            mt={6}
            onClick={() => onSelect(list as string, place as number, name)}
          >
            {strings.orchestrations.showNode(visible(name))}
          </Button>
        )}
      </Alert>
    )
  }
  return (
    <Stack gap="xs">
      {[...problems.map(each => row(each, true)), ...warnings.map(each => row(each, false))].slice(0, SHOWN)}
    </Stack>
  )
}
