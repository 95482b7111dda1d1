import {
  IconArrowsSplit,
  IconBroadcast,
  IconClock,
  IconDatabasePlus,
  IconFunction,
  IconHierarchy,
  IconHourglass,
  IconRepeat,
  IconRobot,
  IconRotate,
  IconSearch,
  IconSquareCheck,
  IconTool,
  IconUser,
  IconWebhook,
  type TablerIcon,
} from '@tabler/icons-react'

const ICONS: Record<string, TablerIcon> = {
  agent: IconRobot,
  tool: IconTool,
  transform: IconFunction,
  condition: IconArrowsSplit,
  knowledge: IconSearch,
  memory_write: IconDatabasePlus,
  human: IconUser,
  webhook: IconWebhook,
  approval: IconSquareCheck,
  loop: IconRepeat,
  sub_orchestration: IconHierarchy,
  poll: IconRotate,
  delay: IconClock,
  emit_event: IconBroadcast,
}

/** The icon of a type of nodes. */
export function NodeTypeIcon({ type, size = 18 }: { type: string; size?: number }) {
  const Icon = ICONS[type] ?? IconHourglass
  return <Icon size={size} aria-hidden style={{ flex: 'none' }} />
}
