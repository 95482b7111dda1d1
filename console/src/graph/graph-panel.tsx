import { Box, Card, Group, Skeleton, Text, VisuallyHidden } from '@mantine/core'
import { useMediaQuery } from '@mantine/hooks'
import { lazy, Suspense, useRef } from 'react'
import { StatusIcon } from '#components/status.tsx'
import { visible } from '#components/text.tsx'
import { Tree } from '#components/tree.tsx'
import * as strings from '#strings.ts'
import type { GraphEdge, GraphEdit, GraphNode } from './graph.tsx'
import { useLayout } from './layout.ts'
import { MarkIcon } from './marks.tsx'
import { NodeTypeIcon } from './node-type.tsx'
import type { Layout } from './shape.ts'

// Loaded with the view, and not after its data.
const drawing = import('./graph.tsx')
const Graph = lazy(() => drawing)

/** Nodes above which a graph is shown as a list alone. */
const DRAWN_NODES = 500
const ROW_PX = 50

/**
 * A graph next to the list of its nodes, which says the same for keyboard and screen reader. On a phone, where there are
 * too many nodes, and where the layout fails, the list alone; with `isBare` the graph alone where it can be drawn.
 */
export function GraphPanel({
  label,
  graph: { nodes, edges },
  selected,
  onSelect,
  height = 520,
  isBare,
  edit,
}: {
  label: string
  graph: { nodes: GraphNode[]; edges: GraphEdge[] }
  selected: string | null
  /** Chooses a node, by keyboard or by mouse. */
  onSelect: (id: string, isByKeyboard?: boolean) => void
  height?: number
  isBare?: boolean
  edit?: GraphEdit
}) {
  const isNarrow = useMediaQuery('(max-width: 47.99em)', undefined, { getInitialValueInEffect: false })
  const isDrawable = !isNarrow && nodes.length <= DRAWN_NODES && nodes.length > 0
  const shape = {
    ids: nodes.map(({ id }) => id),
    edges: edges.map(({ from, to, label }) => ({ from, to, label })),
  }
  const { key, layout, isError } = useLayout(shape, isDrawable)
  const isDrawn = isDrawable && !isError
  // A graph that is edited stays until the next one has a layout.
  const last = useRef<{ nodes: GraphNode[]; edges: GraphEdge[]; layout: Layout; shapeKey: string }>(null)
  if (layout) last.current = { nodes, edges, layout, shapeKey: edit ? 'edited' : key }
  const drawn = layout || edit ? last.current : null
  const skeleton = <Skeleton h={height} radius="lg" />
  return (
    <Group align="flex-start" gap="lg" wrap={isDrawn ? 'nowrap' : 'wrap'}>
      {isDrawn && (
        <Box flex={1} miw={0}>
          <Suspense fallback={skeleton}>
            {drawn ? <Graph {...drawn} {...{ label, selected, onSelect, height, edit }} /> : skeleton}
          </Suspense>
        </Box>
      )}
      {!(isBare && isDrawn) && (
        <Card withBorder radius="lg" padding={0} w={isDrawn ? 300 : '100%'} mah={height} style={{ flex: 'none' }}>
          <Text fw={600} component="h2" size="md" p="md" pb="xs">
            {strings.runs.nodes}
          </Text>
          {isDrawable && isError && (
            <Text size="sm" c="dimmed" px="md" pb="xs">
              {strings.graph.notDrawn}
            </Text>
          )}
          <Tree
            label={strings.runs.nodes}
            rowPx={ROW_PX}
            maxHeight={height - 52}
            selected={selected}
            onSelect={id => onSelect(id, true)}
            rows={nodes.map(node => ({ id: node.id, level: 1, content: <Row node={node} edges={edges} /> }))}
          />
        </Card>
      )}
    </Group>
  )
}

function Row({ node: { id, type, status, detail, mark }, edges }: { node: GraphNode; edges: GraphEdge[] }) {
  const after = edges.filter(({ to }) => to === id).map(({ from }) => from)
  const facts = [mark && strings.graph.marks[mark], detail].filter(Boolean).join(' · ')
  return (
    <Group gap="sm" wrap="nowrap" h="100%" px="md">
      {status && <StatusIcon status={status} />}
      {mark && <MarkIcon mark={mark} />}
      <Box miw={0} flex={1}>
        <Text size="sm" fw={600} truncate>
          {visible(id)}
        </Text>
        <Text size="xs" c="dimmed" truncate>
          {visible(facts || type)}
        </Text>
        <VisuallyHidden>
          {[facts && type, after.length > 0 && strings.runs.after(visible(after.join(', ')))]
            .filter(Boolean)
            .join(', ')}
        </VisuallyHidden>
      </Box>
      <NodeTypeIcon type={type} size={16} />
    </Group>
  )
}
