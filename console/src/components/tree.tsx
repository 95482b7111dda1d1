import { Box } from '@mantine/core'
import { IconChevronDown, IconChevronRight } from '@tabler/icons-react'
import { useVirtualizer } from '@tanstack/react-virtual'
import { type KeyboardEvent, type ReactNode, useRef, useState } from 'react'

type TreeRow = {
  id: string
  /** Depth, from 1. */
  level: number
  content: ReactNode
  /** Whether the rows below it are shown; undefined for a row that has none. */
  isOpen?: boolean
}

/** Rows above which only those in view are drawn. */
const WINDOWED_ABOVE = 200

/** Returns the place of each row among its siblings and their number. */
function placesOf(rows: TreeRow[]): { position: number; size: number }[] {
  const places = rows.map(() => ({ position: 0, size: 0 }))
  const open: number[][] = []
  const close = (level: number) => {
    for (const group of open.splice(level)) for (const index of group) places[index].size = group.length
  }
  rows.forEach(({ level }, index) => {
    close(level)
    const siblings = (open[level - 1] ??= [])
    siblings.push(index)
    places[index].position = siblings.length
  })
  close(0)
  return places
}

/** Opens and closes a row by mouse; a row that has no others below it leaves its place empty. */
export function TreeToggle({ isOpen, onToggle }: { isOpen?: boolean; onToggle: (isOpen: boolean) => void }) {
  if (isOpen === undefined) return <Box w={16} style={{ flex: 'none' }} />
  const Icon = isOpen ? IconChevronDown : IconChevronRight
  return (
    <Box
      aria-hidden
      display="flex"
      style={{ flex: 'none' }}
      onClick={event => {
        event.stopPropagation()
        onToggle(!isOpen)
      }}
    >
      <Icon size={16} />
    </Box>
  )
}

/**
 * A tree of rows of one height. Arrows, Home and End move; Enter and Space choose; the right and left arrows open and
 * close a row. Of many rows those in view are drawn.
 */
export function Tree({
  label,
  rows,
  selected,
  onSelect,
  onToggle,
  rowPx,
  maxHeight,
}: {
  label: string
  rows: TreeRow[]
  selected: string | null
  onSelect: (id: string) => void
  onToggle?: (id: string, isOpen: boolean) => void
  rowPx: number
  maxHeight: number
}) {
  const scroll = useRef<HTMLDivElement>(null)
  const [active, setActive] = useState<string | null>(null)
  const isWindowed = rows.length > WINDOWED_ABOVE
  const view = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => rowPx,
    overscan: 12,
    enabled: isWindowed,
  })
  const places = placesOf(rows)
  const indexOf = (id: string | null) => rows.findIndex(row => row.id === id)
  const current = Math.max(indexOf(active), 0)
  const go = (index: number) => {
    const row = rows[index]
    if (!row) return
    setActive(row.id)
    if (isWindowed) view.scrollToIndex(index)
    // A row out of view is drawn first.
    requestAnimationFrame(() => scroll.current?.querySelector<HTMLElement>(`[data-row="${index}"]`)?.focus())
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (!(event.target as HTMLElement).matches('[role=treeitem]')) return
    const row = rows[current]
    const parent = () => rows.slice(0, current).findLastIndex(({ level }) => level < row.level)
    const keys: Record<string, () => void> = {
      ArrowDown: () => go(current + 1),
      ArrowUp: () => go(current - 1),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      ArrowRight: () => (row.isOpen === false ? onToggle?.(row.id, true) : row.isOpen && go(current + 1)),
      ArrowLeft: () => (row.isOpen ? onToggle?.(row.id, false) : go(parent())),
      Enter: () => onSelect(row.id),
      ' ': () => onSelect(row.id),
    }
    const act = keys[event.key]
    if (!act || !row) return
    event.preventDefault()
    act()
  }
  const drawn = isWindowed ? view.getVirtualItems().map(({ index }) => index) : rows.map((_, index) => index)
  return (
    <Box ref={scroll} mah={maxHeight} style={{ overflowY: 'auto' }}>
      <Box role="tree" aria-label={label} h={rows.length * rowPx} pos="relative" onKeyDown={onKeyDown} className="tree">
        {drawn.map(index => {
          const { id, level, content, isOpen } = rows[index]
          return (
            <Box
              key={id}
              role="treeitem"
              data-row={index}
              aria-level={level}
              aria-posinset={places[index].position}
              aria-setsize={places[index].size}
              aria-expanded={isOpen}
              aria-selected={id === selected}
              tabIndex={index === current ? 0 : -1}
              onFocus={() => setActive(id)}
              onClick={() => onSelect(id)}
              pos="absolute"
              top={index * rowPx}
              left={0}
              right={0}
              h={rowPx}
            >
              {content}
            </Box>
          )
        })}
      </Box>
    </Box>
  )
}
