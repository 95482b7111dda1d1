export function NewPolicy() {
  return null
}
export function PolicyView() {
  return null
}
