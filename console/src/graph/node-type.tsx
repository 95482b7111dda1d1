import {
  IconArrowsSplit,
  IconBolt,
  IconBroadcast,
  IconCircle,
  IconCircleCheck,
  IconClock,
  IconDatabasePlus,
  IconFunction,
  IconHierarchy,
  IconHourglass,
  IconPlayerPlay,
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
  orchestration: IconHierarchy,
  trigger: IconBolt,
  initial: IconPlayerPlay,
  state: IconCircle,
  terminal: IconCircleCheck,
}

/** The icon of a type of nodes or states. */
export function NodeTypeIcon({ type, size = 18 }: { type: string; size?: number }) {
  const Icon = ICONS[type] ?? IconHourglass
  return <Icon size={size} aria-hidden style={{ flex: 'none' }} />
}
