import {
  IconAlertCircle,
  IconAlertTriangle,
  IconCircleMinus,
  IconCirclePlus,
  IconPencil,
  type TablerIcon,
} from '@tabler/icons-react'

/** A mark of a node or an edge: what a validator or a comparison found there. */
export type Mark = 'problem' | 'warning' | 'added' | 'removed' | 'changed'

const MARKS: Record<Mark, { icon: TablerIcon; color: string }> = {
  problem: { icon: IconAlertCircle, color: 'red' },
  warning: { icon: IconAlertTriangle, color: 'orange' },
  added: { icon: IconCirclePlus, color: 'teal' },
  removed: { icon: IconCircleMinus, color: 'red' },
  changed: { icon: IconPencil, color: 'orange' },
}

/** Returns the color of a mark as the value of a style. */
export const markColor = (mark: Mark): string => `var(--mantine-color-${MARKS[mark].color}-text)`

/** The icon of a mark, without its name. */
export function MarkIcon({ mark, size = 16 }: { mark: Mark; size?: number }) {
  const { icon: Icon } = MARKS[mark]
  return <Icon size={size} color={markColor(mark)} aria-hidden style={{ flex: 'none' }} />
}
