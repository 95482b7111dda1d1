import { Box, Card, Group, Skeleton, Text } from '@mantine/core'
import { useMediaQuery } from '@mantine/hooks'
import { lazy, type ReactNode, Suspense } from 'react'
import type { GraphEdge, GraphNode } from './graph.tsx'

// Loaded with the view, and not after its data.
const drawing = import('./graph.tsx')
const Graph = lazy(() => drawing)

/** Nodes above which a graph is shown as a list alone. */
const DRAWN_NODES = 500
const HEIGHT = 520

/** A graph beside its list of nodes; on a phone, and where there are too many nodes, the list alone. */
export function GraphPanel({
  label,
  graph: { nodes, edges },
  selected,
  onSelect,
  listTitle,
  list,
}: {
  label: string
  graph: { nodes: GraphNode[]; edges: GraphEdge[] }
  selected: string | null
  onSelect: (id: string) => void
  listTitle: string
  list: ReactNode
}) {
  const isNarrow = useMediaQuery('(max-width: 47.99em)', undefined, { getInitialValueInEffect: false })
  const isDrawn = !isNarrow && nodes.length <= DRAWN_NODES && nodes.length > 0
  return (
    <Group align="flex-start" gap="lg" wrap={isDrawn ? 'nowrap' : 'wrap'}>
      {isDrawn && (
        <Box flex={1} miw={0}>
          <Suspense fallback={<Skeleton h={HEIGHT} radius="lg" />}>
            <Graph label={label} nodes={nodes} edges={edges} selected={selected} onSelect={onSelect} />
          </Suspense>
        </Box>
      )}
      <Card withBorder radius="lg" padding={0} w={isDrawn ? 300 : '100%'} mah={HEIGHT} style={{ flex: 'none' }}>
        <Text fw={600} component="h2" size="md" p="md" pb="xs">
          {listTitle}
        </Text>
        {list}
      </Card>
    </Group>
  )
}
