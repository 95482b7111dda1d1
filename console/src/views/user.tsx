export function UserView() {
  return null
}
